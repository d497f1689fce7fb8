"""The cookbook is true: each script prints, before and after its fix, what its page shows.

A page shows each run as a `text` block that begins with its command, such as `$ python loss_is_nan.py --fixed`. The
scripts send to a server of this test.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from hookcore.findings import RULES
from tests.manual import PAGES, ROOT, blocks_of, tokens_of
from tests.serving import TOKEN, Served, served
from tests.warm import python

SCRIPTS: Final = ROOT / "examples" / "cookbook"
INDEX: Final = ROOT / "docs" / "cookbook" / "README.md"
RECIPES: Final = [page for page in PAGES if page.parent == INDEX.parent and page != INDEX]
MAX_LINES: Final = 60
COMMAND: Final = re.compile(r"\$ python (\w+\.py)((?: --\w+)*)\n")
NUMBER: Final = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")
APPROXIMATE: Final = 2.0  # times a number, because another processor computes it in another order
VARYING: Final = {  # scripts whose numbers are measured, or grow so large that the last bits of a processor matter
    *("slow_step.py", "rank_is_late.py", "memory_grows.py"),
    *("dead_units.py", "learning_rate.py"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A run on a page: the script, its flags, and what it prints."""

    script: str
    flags: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return " ".join((self.script, *self.flags))


def shown_on(page: Path) -> list[Shown]:
    found = [(COMMAND.match(block.text), block.text) for block in blocks_of(page, "text")]
    return [Shown(one[1], tuple(one[2].split()), text[one.end() :]) for one, text in found if one]


ALL: Final = [shown for page in RECIPES for shown in shown_on(page)]
WHEN: Final = [pytest.param("after" if "--fixed" in each.flags else "before", each, id=str(each)) for each in ALL]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(max_runs=1000) as found:
        yield found


@pytest.mark.slow
@pytest.mark.rota("when")
@pytest.mark.parametrize(("when", "shown"), WHEN)
def test_a_script_prints_what_its_page_shows(when: str, shown: Shown, server: Served, tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("HOOKCORE_")}
    given |= {"HOOKCORE_URL": server.url, "HOOKCORE_TOKEN": TOKEN, "HOOKCORE_HOME": str(tmp_path / "home")}
    command = [python(), str(SCRIPTS / shown.script), *shown.flags]
    ran = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert agree(shown.output, ran.stdout, shown.script in VARYING), (
        f"the page shows\n{shown.output}\nand the script prints\n{ran.stdout}"
    )


def agree(shown: str, said: str, varies: bool = False) -> bool:
    """Return whether two texts have the same words and, unless they vary, the same numbers.

    Whole numbers, such as steps, must be equal, and others almost.
    """
    if varies or NUMBER.sub("#", shown) != NUMBER.sub("#", said):
        return NUMBER.sub("#", shown) == NUMBER.sub("#", said)
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(said), strict=True)
    return all(one == two or _close(one, two) for one, two in pairs)


def _close(one: str, two: str) -> bool:
    if not {".", "e"} & set(one + two):
        return False
    small, large = sorted(float(each.replace(",", "")) for each in (one, two))
    return large <= APPROXIMATE * small


def test_texts_agree_if_only_measured_numbers_differ() -> None:
    assert agree("fell from 2.3 to 7e-17 at step 100, in 17", "fell from 2.4 to 9e-17 at step 100, in 17")
    for other in ("fell from 2.3 to 7e-17 at step 100, in 16", "rose from 2.3 to 7e-17 at step 100, in 17", "fell"):
        assert not agree("fell from 2.3 to 7e-17 at step 100, in 17", other)


def test_every_script_is_on_a_page_as_it_is_and_is_run_before_and_after_its_fix() -> None:
    files = {f"{each.relative_to(ROOT)}" for each in SCRIPTS.glob("*.py")}
    assert {block.file for page in RECIPES for block in blocks_of(page) if block.file} == files
    for page in RECIPES:
        (script,) = {each.script for each in shown_on(page)}
        assert [f"examples/cookbook/{script}"] == [block.file for block in blocks_of(page) if block.file]
        assert {(), ("--fixed",)} <= {each.flags for each in shown_on(page)}


def test_a_script_has_at_most_sixty_lines() -> None:
    assert {each.name for each in SCRIPTS.glob("*.py") if len(each.read_text().splitlines()) > MAX_LINES} == set()


def test_the_index_has_every_page() -> None:
    children = [child for token in tokens_of(INDEX) for child in token.children or []]
    links = {str(child.attrGet("href")) for child in children if child.type == "link_open"}
    assert {page.name for page in RECIPES} <= links


def test_the_index_names_the_rules_whose_sentences_a_page_shows() -> None:
    rows = [line.split("|") for line in INDEX.read_text().splitlines() if line.startswith('| "')]
    assert len(rows) == len(RECIPES)
    for row in rows:
        target = re.search(r"\]\(([\w-]+\.md)\)", row[2])
        assert target is not None
        outputs = "".join(each.output for each in shown_on(INDEX.parent / target[1]))
        assert all(f" {rule}: " in outputs for rule in RULES.keys() & set(re.findall(r"`([\w-]+)`", row[3]))), target[1]
