"""Globs and regular expressions, none of which can hang the program."""

from __future__ import annotations

import fnmatch
import subprocess
import sys

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from hookcore.config import patterns
from hookcore.config.patterns import matcher
from hookcore.errors import PatternError

NAMES = [f"blocks.{number}.attn.{'a' * 80}.c" for number in range(10_000)]
SIGNS = "ab.-]![*?_x\\^&~|é\n"


@given(st.text(SIGNS, max_size=8), st.text(SIGNS, max_size=8))
def test_a_glob_means_the_same_as_in_the_standard_library(glob: str, name: str) -> None:
    if "--" not in glob:  # ranges that begin or end with a hyphen are parsed differently there
        assert patterns.glob(glob)(name) == fnmatch.fnmatchcase(name, glob)


@given(st.text(max_size=20))
def test_any_name_matches_the_star_and_nothing_else_raises(name: str) -> None:
    assert patterns.glob("*")(name)
    assert patterns.expression("(?s).*")(name)


def test_half_a_surrogate_pair_in_a_name_is_not_an_error() -> None:
    assert patterns.glob("a*")("a\udc80")
    assert not patterns.glob("\udc80b")("a")


@pytest.mark.parametrize(
    "bomb",
    [
        "*a" * 400 + "*b",
        "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b",
        "re:(a+)+b",
        "re:(.*)*b",
        "re:(a?){300}a{300}",
        "re:" + "(.*a)" * 150 + "b",
        "re:(.*a.{100})+b",
        "re:" + "(" * 300 + "a*" + ")*" * 300,
    ],
    ids=lambda bomb: bomb[:12],
)
def test_a_catastrophic_pattern_is_fast_on_ten_thousand_names(bomb: str) -> None:
    fits = matcher(bomb)
    assert not any(fits(name) for name in NAMES)


def test_patterns_that_would_take_long_are_refused() -> None:
    for pattern in ("re:(.?){900}x(.?){900}", "re:((a{30}){30}){30}", "re:" + "a" * 1001, "?" * 1000, "a" * 1001):
        with pytest.raises(PatternError):
            matcher(pattern)


@pytest.mark.parametrize("pattern", ["re:(?=a)b", "re:(?<!a)b", r"re:(a)\1", "re:(?P<x>a)(?P=x)"])
def test_the_error_names_the_unsupported_syntax(pattern: str) -> None:
    with pytest.raises(PatternError, match="Lookaround and backreferences are not supported"):
        matcher(pattern)


def test_a_refused_expression_writes_nothing_to_the_terminal() -> None:
    code = (
        "from hookcore.config import patterns\n"
        "try: patterns.expression('(')\n"
        "except patterns.PatternError: pass\n"
        "patterns.expression('(a?){300}a{300}')('a' * 300)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""


def test_no_compiled_pattern_stays_in_a_cache() -> None:
    assert patterns.expression("a+")("aa")
    assert re2._Regexp._make.cache_info().currsize == 0
