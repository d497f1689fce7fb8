"""The facts of the find box are built once, so every page shows the same modules before and after its script runs."""

from __future__ import annotations

import math
import re

import pytest

from hookcore.records import Tap
from hookcore_app.analysis.facts import facts_of, finder_of

from .api_world import COVERAGE, HOOKS, MODULES, TAPS, World, make_frame, open_run, value_at

FILTERS = ("is:nan", "is:dead", "is:frozen", "is:trainable", "is:captured", "is:uncaptured", "again.0", "type:ReLU")


@pytest.fixture
def world() -> World:
    return World()


def test_the_facts_contain_what_the_run_knows_of_each_module(world: World) -> None:
    facts = facts_of(world.run)
    assert [*facts] == [module.path for module in MODULES]
    found = {text: [path for path in facts if finder_of(world.run, text).fits(path)] for text in FILTERS}
    assert found == {
        "is:nan": ["layers.0", "layers.1"],
        "is:dead": [],
        "is:frozen": ["head"],
        "is:trainable": ["", "layers.0"],
        "is:captured": ["", "layers.0", "layers.1"],
        "is:uncaptured": ["head"],
        "again.0": ["layers.0"],
        "type:ReLU": ["layers.1"],
    }


def test_the_script_gets_the_facts_of_the_server(world: World) -> None:
    sent = world.json("runs/one/facts")["modules"]
    own = [
        [each.path, each.type, list(each.aliases), each.parameters, each.trainable, each.captured, each.nan, each.dead]
        for each in facts_of(world.run).values()
    ]
    assert sent == own


def test_a_module_that_held_a_nan_long_ago_is_still_found(world: World) -> None:
    run = open_run(world.runs, "long")
    run.store.describe(MODULES, COVERAGE, HOOKS)
    tap = Tap("layers.0", "output")
    for step in range(2000):
        new = (tap,) if step == 0 else ()
        run.store.append(make_frame(step, [math.nan if step == 3 else 1.0], new_taps=new))
        if step % 700 == 0:
            assert facts_of(run)["layers.0"].nan == (step > 3)
    assert facts_of(run)["layers.0"].nan


def test_a_module_that_becomes_nonfinite_is_found_from_then_on(world: World) -> None:
    run = open_run(world.runs, "later")
    run.store.describe(MODULES, COVERAGE, HOOKS)
    taps = (TAPS[1], TAPS[2])
    run.store.append(make_frame(0, [1.0, 1.0], new_taps=taps))
    assert not any(each.nan for each in facts_of(run).values())
    run.store.append(make_frame(1, [1.0, math.inf]))
    assert [path for path, each in facts_of(run).items() if each.nan] == ["layers.1"]


@pytest.mark.parametrize("page", ["flow", "histograms", "hooks", "layer"])
@pytest.mark.parametrize("text", FILTERS)
def test_every_page_shows_the_modules_of_the_facts(world: World, page: str, text: str) -> None:
    html = world.client.get(f"/runs/one/{page}", params={"f": text, "kind": "output"}).text
    main = html[html.index("<main") : html.index("</main")]
    fits = finder_of(world.run, text).fits
    shown = set(re.findall(r"module=([\w.]+)", main))
    known = {"layers.0", "layers.1", *(("head",) if page == "layer" else ())}
    assert shown & known == {path for path in known if fits(path)}


def test_values_of_the_fixture_are_those_that_the_filters_expect() -> None:
    assert math.isnan(value_at(7, 1))
    assert math.isinf(value_at(9, 2))
