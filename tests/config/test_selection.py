"""Patterns: the modules that they select, the reason for each, and the error for a pattern without a match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.config import Pattern
from hookcore.config.patterns import Selection, select
from hookcore.errors import ArgumentError, HookcoreError, PatternError


class Module:
    """Stands for torch's base class: this file needs no torch."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"a module was asked for {name!r}")


class Linear(Module): ...


class NonDynamicallyQuantizableLinear(Linear): ...


class LayerNorm(Module): ...


class Dropout(Module): ...


class Net(Module): ...


def _transformer(blocks: int = 2) -> dict[str, object]:
    modules: dict[str, object] = {"": Net(), "embed": Linear(), "blocks": Module()}
    for number in range(blocks):
        here = f"blocks.{number}"
        modules |= {
            here: Module(),
            f"{here}.norm": LayerNorm(),
            f"{here}.attn": Module(),
            f"{here}.attn.proj": NonDynamicallyQuantizableLinear(),
            f"{here}.drop_path": Dropout(),
        }
    return modules


MODULES = _transformer()
LEAVES = {path for path in MODULES if path and not any(other.startswith(f"{path}.") for other in MODULES)}


def _select(include: list[Pattern], exclude: list[Pattern] | None = None) -> Selection:
    return select(MODULES, LEAVES, include, exclude or [])


def test_without_patterns_every_module_is_selected() -> None:
    assert _select([]).chosen == tuple(MODULES)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("embed", ["embed"]),
        ("blocks.*.attn", ["blocks.0.attn", "blocks.1.attn"]),
        ("blocks.*.proj", ["blocks.0.attn.proj", "blocks.1.attn.proj"]),
        ("blocks.[1-9].norm", ["blocks.1.norm"]),
        ("blocks.?", ["blocks.0", "blocks.1"]),
        (r"re:blocks\.\d+", ["blocks.0", "blocks.1"]),
        ("re:.*drop.*", ["blocks.0.drop_path", "blocks.1.drop_path"]),
        ("type:LayerNorm", ["blocks.0.norm", "blocks.1.norm"]),
        ("type:*Norm", ["blocks.0.norm", "blocks.1.norm"]),
        ("type:Linear", ["embed", "blocks.0.attn.proj", "blocks.1.attn.proj"]),
        (Linear, ["embed", "blocks.0.attn.proj", "blocks.1.attn.proj"]),
        (NonDynamicallyQuantizableLinear, ["blocks.0.attn.proj", "blocks.1.attn.proj"]),
        ("is:root", [""]),
        ("is:leaf", sorted(LEAVES, key=list(MODULES).index)),
        ("type:Module", list(MODULES)),
        ("*", list(MODULES)),
    ],
)
def test_a_pattern_selects_exactly_the_modules_it_describes(pattern: Pattern, chosen: list[str]) -> None:
    assert list(_select([pattern]).chosen) == chosen


def test_globs_are_case_sensitive() -> None:
    with pytest.raises(PatternError, match="'embed'"):
        _select(["Embed"])


def test_a_regular_expression_must_match_the_whole_path() -> None:
    with pytest.raises(PatternError, match="matches no module"):
        _select(["re:drop"])


def test_a_colon_in_a_path_is_not_a_prefix() -> None:
    assert select({"": Net(), "a:b": Linear()}, {"a:b"}, ["a:*"]).chosen == ("a:b",)


def test_includes_are_added_and_excludes_are_subtracted() -> None:
    selection = _select([Linear, "blocks.*.norm"], ["re:.*\\.1\\..*"])
    assert selection.chosen == ("embed", "blocks.0.norm", "blocks.0.attn.proj")


def test_every_module_that_is_left_out_has_its_reason() -> None:
    second_block = r"re:.*\.1\..*"
    selection = _select([Linear, LayerNorm], [second_block, "embed"])
    assert list(selection.reasons) == list(MODULES)
    assert selection.reason("blocks.0.norm") == ""
    assert selection.reason("embed") == "excluded by 'embed'"
    assert selection.reason("blocks.1.norm") == f"excluded by {second_block!r}"
    assert selection.reason("blocks.0.drop_path") == "not matched by include"


def test_an_excluding_class_is_named_with_its_module() -> None:
    assert _select([], [Dropout]).reason("blocks.0.drop_path") == f"excluded by {__name__}.Dropout"


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("embedd", "'embed'"),
        ("blocks.1.atn", "'blocks.1.attn'"),
        ("blocks.*.atn", r"'blocks\.\*\.attn'"),
        (r"re:blocks\.\d+\.atn", r"'blocks\.\d\.attn'"),
        ("type:linear", "'type:Linear'"),
        ("type:LayrNorm", "'type:LayerNorm'"),
        ("typ:Linear", "'type:Linear'"),
        ("Linear", "'type:Linear'"),
        (type("Linears", (), {}), "'type:Linear'"),
    ],
)
@pytest.mark.parametrize("place", ["include", "exclude"])
def test_a_pattern_without_a_match_is_an_error_that_lists_near_names(pattern: Pattern, near: str, place: str) -> None:
    with pytest.raises(PatternError, match=f"matches no module. Did you mean .*{near}"):
        select(MODULES, LEAVES, **{place: [pattern]})  # type: ignore[arg-type]


def test_without_a_near_name_some_names_of_the_model_are_shown() -> None:
    with pytest.raises(PatternError, match=r"12 modules below the root: embed, blocks, .*, \.\.\."):
        _select(["qqqqqq"])
    with pytest.raises(PatternError, match="6 module types: Net, Linear, Module"):
        _select([type("Q", (), {})])


def test_the_error_for_a_model_without_children_says_so() -> None:
    with pytest.raises(PatternError, match="no modules below the root"):
        select({"": Net()}, set(), ["layer"])


def test_all_patterns_without_a_match_are_named_together() -> None:
    with pytest.raises(PatternError, match=r"'embedd' matches no module\..* 'type:linear' matches no module"):
        _select(["embedd"], ["type:linear"])


def test_patterns_can_wait_for_models_that_do_not_exist_yet() -> None:
    selection = select(MODULES, LEAVES, ["encoder.*"], [Dropout, "type:Lstm"], strict=False)
    assert selection.chosen == ()
    assert selection.unmatched == ("'encoder.*'", "'type:Lstm'")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("re:(", "missing \\)"),
        ("re:a**", "bad repetition operator: \\*\\*"),
        ("re:*.attn", "no argument for repetition operator: .*For a glob, omit 're:'"),
        ("is:leave", "'is:leaf' or 'is:root'.* Did you mean 'is:leaf'"),
        ("is:", "'is:leaf' or 'is:root'"),
    ],
)
def test_a_malformed_pattern_says_what_is_wrong_and_where(pattern: str, message: str, strict: bool) -> None:
    with pytest.raises(PatternError, match=message) as caught:
        select(MODULES, LEAVES, [pattern], strict=strict)
    assert repr(pattern) in str(caught.value)


def test_a_pattern_error_is_a_value_error_but_not_an_argument_error() -> None:
    with pytest.raises(ValueError, match="no module") as caught:
        _select(["nowhere"])
    assert isinstance(caught.value, HookcoreError)
    assert not isinstance(caught.value, ArgumentError)


@given(st.lists(st.sampled_from(["*", "embed", "blocks.*", "type:Linear", "is:leaf", "is:root"]), max_size=4))
def test_a_module_that_is_included_and_excluded_is_never_selected(patterns: list[Pattern]) -> None:
    assert select(MODULES, LEAVES, patterns, patterns or ["*"]).chosen == ()
