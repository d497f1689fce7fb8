"""The grammar of patterns: what each pattern matches in settings, queries, and find boxes."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.config.patterns import STRUCTURE, Facts, literal, parse, parse_search, select_among
from hookcore.errors import PatternError

MODULES = (
    Facts("", ("Net", "Module"), is_root=True, parameters=9, trainable=5, captured=True),
    Facts("layers.0", ("Block", "Module"), parameters=5, trainable=5, captured=True),
    Facts("layers.0.attn", ("SelfAttention", "Module"), parameters=3, trainable=3, captured=True),
    Facts("layers.0.attn.q", ("Linear", "Module"), is_leaf=True, parameters=3, trainable=3, captured=True, nan=True),
    Facts("layers.0.mlp", ("LazyLinear", "Linear", "Module"), is_leaf=True, parameters=2, captured=True, dead=True),
    Facts("layers.1", ("Block", "Module"), captured=False),
    Facts("layers.1.attn", ("SelfAttention", "Module"), is_leaf=True, captured=False),
    Facts("head", ("Norm", "Module"), is_leaf=True, aliases=("head.again",)),
)
EVERYTHING = list(range(len(MODULES)))

# Patterns that mean the same in a setting, a query, and a find box.
PATTERNS = [
    ("", EVERYTHING),
    ("*", EVERYTHING),
    ("*attn", [2, 6]),
    ("layers.?.mlp", [4]),
    ("layers.*.q", [3]),
    ("layers.[!0]*", [5, 6]),
    (r"re:layers\.\d", [1, 5]),
    ("re:.*q|.*mlp", [3, 4]),
    ("type:Linear", [3, 4]),
    ("type:LazyLinear", [4]),
    ("type:*Attention", [2, 6]),
    ("type:L*near depth:3", [4]),
    ("type:Module", EVERYTHING),
    ("type:Linear is:frozen", [4]),
    ("!type:Linear depth:>2", [2, 6]),
    ("!is:captured is:leaf", [6, 7]),
    ("!re:layers.* !type:Net", [7]),
    ("is:root", [0]),
    ("is:leaf", [3, 4, 6, 7]),
    ("is:trainable", [0, 1, 2, 3]),
    ("is:captured", [0, 1, 2, 3, 4]),
    ("is:uncaptured", [5, 6]),
    ("is:nan", [3]),
    ("is:dead", [4]),
    ("depth:0", [0]),
    ("depth:2", [1, 5]),
    ("depth:>3", [3]),
    ("depth:<2", [0, 7]),
    ("head.again", [7]),
    ("nothing.here", []),
    ("a+b", []),
]
# Patterns that only a find box allows: any case, and words that are a part of the path.
SEARCHES = [
    ("   ", EVERYTHING),
    ("attn", [2, 3, 6]),
    ("ATTN", [2, 3, 6]),
    ("*ATTN", [2, 6]),
    ("layers.0.attn q", [3]),
    ("re:LAYERS.*", [1, 2, 3, 4, 5, 6]),
    ("!layers", [0, 7]),
    ("layers.0 !attn", [1, 4]),
    ("type:linear", [3, 4]),
    ("[0]", []),
]


def _found(test: object) -> list[int]:
    return [place for place, module in enumerate(MODULES) if test.fits(module)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "wanted"), PATTERNS)
def test_a_pattern_means_the_same_in_settings_queries_and_find_boxes(text: str, wanted: list[int]) -> None:
    assert _found(parse(text)) == _found(parse_search(text)) == wanted


@pytest.mark.parametrize(("text", "wanted"), SEARCHES)
def test_a_find_box_also_takes_any_case_and_parts_of_a_path(text: str, wanted: list[int]) -> None:
    assert _found(parse_search(text)) == wanted


def test_settings_and_queries_are_case_sensitive() -> None:
    for text in ("*ATTN", "re:LAYERS.*", "type:linear", "attn"):
        assert _found(parse(text)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("re:(", "'re:\\(' is not a regular expression: missing \\)"),
        ("!re:(", "not a regular expression"),
        ("layers.* re:a**", "bad repetition operator"),
        ("is:odd", "'is:odd' is not a pattern: use 'is:leaf' or .*'is:uncaptured'"),
        ("is:frozn", "Did you mean 'is:frozen'"),
        ("is:", "use 'is:leaf'"),
        ("type:", "add the name of a class, such as type:Linear"),
        ("depth:x", "'depth:x' is not a pattern: use depth:2, depth:<3, or depth:>1"),
        ("depth:", "use depth:2"),
        ("x" * 2000, "2000 characters .* is too long: use at most 1000"),
    ],
)
def test_an_invalid_text_says_what_was_given_what_is_expected_and_what_to_do(text: str, words: str) -> None:
    for read in (parse, parse_search):
        with pytest.raises(PatternError, match=words):
            read(text)


def test_a_find_box_explains_the_replacement_for_expressions_between_slashes() -> None:
    with pytest.raises(PatternError, match="for a regular expression, use re:"):
        parse_search("/q$/")


def test_changing_states_are_refused_if_the_answer_must_not_change() -> None:
    with pytest.raises(PatternError, match=r"'is:nan' can't be used here, because it changes.*'is:leaf' or 'is:root'"):
        parse("is:nan", STRUCTURE)
    assert _found(parse("is:leaf !is:root", STRUCTURE)) == [3, 4, 6, 7]


def test_a_condition_names_the_states_it_asks_about() -> None:
    assert parse("!is:nan layers.* is:dead").states == {"nan", "dead"}
    assert parse("nan.dead").states == frozenset()


# A busy machine must not make the test fail.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TERMS = st.one_of(
    st.sampled_from([text for text, _ in PATTERNS if text and " " not in text and not text.startswith("!")]),
    st.text("abl.*?[!]01", min_size=1, max_size=8).filter(lambda text: not text.startswith("!")),
)
PATHS = st.text("ab.*?[]!: \tre", max_size=10)


@calm
@given(st.lists(TERMS, max_size=4))
def test_several_terms_match_only_paths_that_match_each_of_them(terms: list[str]) -> None:
    for read in (parse, parse_search):
        each = [set(_found(read(term))) for term in terms]
        assert set(_found(read(" ".join(terms)))) == set(EVERYTHING).intersection(*each)


@calm
@given(TERMS)
def test_a_negated_term_matches_all_other_modules(term: str) -> None:
    for read in (parse, parse_search):
        assert sorted(_found(read(term)) + _found(read(f"!{term}"))) == EVERYTHING


@calm
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_with_a_pattern_error(text: str) -> None:
    for read in (parse, parse_search):
        with contextlib.suppress(PatternError):
            _found(read(text))


@calm
@given(st.text("abA.*?_", min_size=1, max_size=8), st.text("abA._", max_size=8))
def test_a_glob_in_a_find_box_ignores_case_and_is_otherwise_the_same(pattern: str, path: str) -> None:
    found = parse_search(f"*{pattern}").fits(Facts(path))
    assert found == fnmatch.fnmatchcase(path.lower(), f"*{pattern}".lower())


@calm
@given(st.text("abAé._", min_size=1, max_size=4), st.text("abAé._", max_size=8))
def test_a_word_in_a_find_box_is_a_part_of_the_path(word: str, path: str) -> None:
    assert parse_search(word).fits(Facts(path)) == (word.lower() in path.lower())


@calm
@given(PATHS, PATHS)
def test_a_literal_matches_its_path_alone(path: str, other: str) -> None:
    test = parse(literal(path), STRUCTURE)
    assert test.fits(Facts(path, is_root=path == ""))
    assert other == path or not test.fits(Facts(other, is_root=other == ""))
    assert not re.search(r"\s", literal(path))


@calm
@given(st.lists(TERMS, max_size=3), st.lists(TERMS, max_size=3))
def test_selected_modules_are_included_and_not_excluded(include: list[str], exclude: list[str]) -> None:
    modules = {module.path: module for module in MODULES}
    try:
        chosen = set(select_among(modules, include, exclude, strict=False).chosen)
    except PatternError:
        return
    wanted, unwanted = (
        {MODULES[place].path for text in texts for place in _found(parse(text))} for texts in (include, exclude)
    )
    assert chosen == (wanted if include else set(modules)) - unwanted


def test_a_root_with_a_name_has_depth_0() -> None:
    named = replace(MODULES[0], path="Net")
    assert [module.depth for module in (named, Facts("Net/0"), Facts("Net/0.a"))] == [0, 1, 2]
