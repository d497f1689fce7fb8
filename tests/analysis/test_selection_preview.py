"""The Capture page: the modules that patterns would select, and the patterns after a checkbox was clicked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.config.patterns import Facts, select, select_among
from hookcore.records import ModuleRecord
from hookcore.store import Store
from hookcore_app.analysis.modules import Patterns, Switch, settings_facts, switched
from tests.api_world import World, open_run

TREE = (
    ("", "Net", None),
    ("layers", "Sequential", ""),
    ("layers.0", "Block", "layers"),
    ("layers.0.attn", "Attention", "layers.0"),
    ("layers.1", "Block", "layers"),
    ("layers.1.attn", "Attention", "layers.1"),
    ("layers.10", "Linear", "layers"),
    ("head", "Linear", ""),
)
PATHS = [path for path, _, _ in TREE]


def facts_of(tree: Iterable[tuple[str, str, str | None]]) -> dict[str, Facts]:
    """Return the facts about modules that patterns in settings test."""
    store = Store(2**22)
    store.describe([ModuleRecord(*module) for module in tree])
    return settings_facts(store)


MODULES = facts_of(TREE)


def selected(patterns: Patterns, modules: dict[str, Facts] = MODULES) -> list[str]:
    """Return the modules that patterns select."""
    return list(select_among(modules, patterns.include, patterns.exclude, strict=False).chosen)


def switch(before: Patterns, *paths: str, on: bool, whole: bool = False) -> Patterns:
    """Return the patterns after a switch that nothing blocks."""
    after, blocked = switched(MODULES, before, Switch(paths, whole, on))
    assert blocked == ""
    return after


def test_a_shared_module_is_selected_by_each_of_its_paths() -> None:
    store = Store(2**22)
    store.describe(
        [
            ModuleRecord("Net", "Net", None),
            ModuleRecord("Net/encoder", "Linear", "Net", aliases=("Net/decoder",)),
            ModuleRecord("Net/head", "Linear", "Net"),
        ]
    )
    assert selected(Patterns(("decoder",)), settings_facts(store)) == ["Net/encoder"]
    assert selected(Patterns(exclude=("decoder",)), settings_facts(store)) == ["Net", "Net/head"]


# A busy machine must not make the test fail.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
PATTERNS = st.lists(
    st.sampled_from(
        [
            "layers.*",
            "layers.?",
            "layers.[!0]",
            "*attn",
            "is:leaf",
            "!is:root",
            "type:Block",
            r"re:layers\.\d+",
            "depth:1",
        ]
    ),
    max_size=3,
)


@calm
@given(PATTERNS, PATTERNS)
def test_the_page_selects_what_the_trainer_selects(include: list[str], exclude: list[str]) -> None:
    trainer = {path: type(name, (), {})() for path, name, _ in TREE}
    leaves = {"layers.0.attn", "layers.1.attn", "layers.10", "head"}
    theirs = select(trainer, leaves, include, exclude, strict=False)
    assert selected(Patterns(tuple(include), tuple(exclude))) == list(theirs.chosen)


def test_with_several_roots_a_pattern_applies_below_each() -> None:
    two = facts_of(
        (
            ("left", "M", None),
            ("left/0", "M", "left"),
            ("left/0.a", "M", "left/0"),
            ("right", "M", None),
            ("right/0", "M", "right"),
        )
    )
    assert selected(Patterns(("0",)), two) == ["left/0", "right/0"]
    assert selected(Patterns((), ("is:root",)), two) == ["left/0", "left/0.a", "right/0"]
    after, _ = switched(two, Patterns(), Switch(("left/0",), False, False))
    assert after == Patterns((), ("0",))


def test_a_module_in_two_places_is_a_child_in_both() -> None:
    shared = facts_of((("", "Net", None), ("a", "A", ""), ("b", "B", "")))
    assert selected(Patterns(("is:leaf",)), shared) == ["a", "b"]
    store = Store(2**22)
    store.describe(
        [ModuleRecord("", "Net", None), ModuleRecord("a", "A", "", aliases=("b.x",)), ModuleRecord("b", "B", "")]
    )
    assert selected(Patterns(("is:leaf",)), settings_facts(store)) == ["a"]


@pytest.mark.parametrize("path", PATHS)
def test_a_module_switched_off_and_on_again_leaves_no_pattern(path: str) -> None:
    off = switch(Patterns(), path, on=False)
    assert selected(off) == [each for each in PATHS if each != path]
    assert switch(off, path, on=True) == Patterns()


def test_a_collapsed_group_is_switched_with_everything_below() -> None:
    off = switch(Patterns(), "layers.0", on=False, whole=True)
    assert selected(off) == ["", "layers", "layers.1", "layers.1.attn", "layers.10", "head"]
    assert selected(switch(Patterns(), "", on=False, whole=True)) == []


def test_a_folded_row_is_switched_in_all_its_blocks_with_one_pattern() -> None:
    off = switch(Patterns(), "layers.0.attn", "layers.1.attn", on=False)
    assert len(off.exclude) == 1
    assert selected(off) == ["", "layers", "layers.0", "layers.1", "layers.10", "head"]


def test_a_folded_row_that_covers_only_some_numbers_is_switched_path_by_path() -> None:
    more = facts_of((*TREE, ("layers.3", "Other", "layers"), ("layers.3.attn", "Other", "layers.3")))
    after, _ = switched(more, Patterns(), Switch(("layers.0.attn", "layers.1.attn"), False, False))
    assert after.exclude == ("layers.0.attn", "layers.1.attn")


def test_a_module_that_is_not_included_can_be_added_and_removed_again() -> None:
    on = switch(Patterns(("head",)), "layers.0", on=True)
    assert selected(on) == ["layers.0", "head"]
    assert switch(on, "layers.0", on=False) == Patterns(("head",))


def test_the_last_included_pattern_stays_because_no_patterns_select_everything() -> None:
    assert selected(switch(Patterns(("head",)), "head", on=False)) == []


def test_a_wider_pattern_that_still_excludes_a_module_is_named_and_stays() -> None:
    before = Patterns((), ("layers.*",))
    assert switched(MODULES, before, Switch(("layers.0",), False, True)) == (before, "layers.*")


@pytest.fixture
def world() -> World:
    world = World()
    open_run(world.runs, "tree").store.describe([ModuleRecord(*module) for module in TREE])
    return world


def preview(world: World, **draft: Any) -> dict[str, Any]:
    """Return the answer to a draft."""
    answer = world.client.post("/api/v1/runs/tree/selection", json=draft)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_preview_counts_the_modules_that_would_be_selected(world: World) -> None:
    found = preview(world, include=["type:Linear", "layers.0"])
    assert (found["modules"], found["selected"], found["fits"]) == (8, 3, True)
    assert found["paths"] == ["layers.0", "layers.10", "head"]
    assert (found["problem"], found["blocked"], found["is_malformed"]) == ("", "", False)


def test_a_preview_says_what_the_trainer_would_reject(world: World) -> None:
    unmatched = preview(world, include=["layer.0", "head"])
    assert "'layer.0' matches no module. Did you mean 'layers.0'" in unmatched["problem"]
    assert (unmatched["is_malformed"], unmatched["selected"]) == (False, 1)
    malformed = preview(world, exclude=["re:("])
    assert "not a regular expression" in malformed["problem"]
    assert (malformed["is_malformed"], malformed["selected"]) == (True, 0)
    assert "'is:leaf' or 'is:root'" in preview(world, exclude=["is:nan"])["problem"]


def test_a_preview_after_a_switch_has_its_patterns(world: World) -> None:
    found = preview(world, switch={"paths": ["head"], "whole": False, "on": False})
    assert (found["include"], found["exclude"], found["selected"]) == ([], ["head"], 7)
    assert (found["fits"], found["paths"]) == (False, ["head"])
    blocked = preview(world, exclude=["h*"], switch={"paths": ["head"], "whole": False, "on": True})
    assert (blocked["blocked"], blocked["exclude"]) == ("h*", ["h*"])
    unknown = world.client.post(
        "/api/v1/runs/tree/selection", json={"switch": {"paths": ["gone"], "whole": False, "on": True}}
    )
    assert unknown.status_code == 400
    assert "no module 'gone': reload the page" in unknown.json()["error"]
