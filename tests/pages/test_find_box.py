"""Find boxes: a text matches the same in the first paint of each page, in its script, and in queries."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hookcore.errors import PatternError
from hookcore.findings import FindingsCache
from hookcore.records import Tap
from hookcore.store import Store
from hookcore_app.analysis.modules import finder_of
from tests.api_world import COVERAGE, HOOKS, MODULES, TAPS, World, make_frame, open_run, value_at


@pytest.fixture
def world() -> World:
    return World()


def matching(world: World, text: str) -> list[str]:
    """Return the modules that a page's script gets for a text."""
    found = world.json("runs/one/find", f=text)
    paths = [module.path for module in MODULES]
    return [path for path in paths if (path in found["paths"]) == found["fits"]]


FOUND = {
    "is:nan": ["layers.0", "layers.1"],
    "is:dead": [],
    "is:frozen": ["head"],
    "is:trainable": ["", "layers.0"],
    "is:captured": ["", "layers.0", "layers.1"],
    "is:uncaptured": ["head"],
    "is:leaf": ["layers.0", "layers.1", "head"],
    "is:root": [""],
    "depth:1": ["head"],
    "again.0": ["layers.0"],
    "type:ReLU": ["layers.1"],
    "!type:Linear": ["", "layers.1"],
    "layers.* !is:trainable": ["layers.1"],
    r"re:layers\.\d": ["layers.0", "layers.1"],
}


@pytest.mark.parametrize("text", FOUND)
def test_a_pattern_matches_the_same_modules_in_queries_find_boxes_and_scripts(world: World, text: str) -> None:
    fits = finder_of(world.run, text).fits
    assert [module.path for module in MODULES if fits(module.path)] == FOUND[text]
    assert matching(world, text) == FOUND[text]
    assert [each["path"] for each in world.json("runs/one/modules", match=text)["modules"]] == FOUND[text]
    taps = world.json("taps", match=text)["taps"]
    assert {each["module"] for each in taps} == {tap.module for tap in TAPS} & set(FOUND[text])
    listed = world.json("coverage", match=text)["coverage"]
    covered = {each.path for each in COVERAGE} | {tap.module for tap in TAPS}
    assert {each["path"] for each in listed} == covered & set(FOUND[text])


def test_an_answer_lists_included_or_excluded_modules_whichever_are_fewer(world: World) -> None:
    assert world.json("runs/one/find", f="is:root") == {"problem": "", "fits": True, "paths": [""]}
    assert world.json("runs/one/find", f="!is:root") == {"problem": "", "fits": False, "paths": [""]}


def test_the_palette_gets_the_first_modules_in_their_order_and_how_many_there_are(world: World) -> None:
    every = [each["path"] for each in world.json("runs/one/modules")["modules"]]
    assert world.json("runs/one/find", f="", limit=2) == {"problem": "", "total": len(every), "paths": every[:2]}
    layers = [path for path in every if "layers" in path]
    found = world.json("runs/one/find", f="LAYERS", limit=1)
    assert found == {"problem": "", "total": len(layers), "paths": layers[:1]}
    wrong = world.json("runs/one/find", f="re:(", limit=5)
    assert (wrong["total"], wrong["paths"]) == (0, [])
    assert "not a regular expression" in wrong["problem"]


def test_dead_modules_are_the_findings_of_the_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = SimpleNamespace(rule="dead", module="layers.0", severity="warning")
    monkeypatch.setattr(FindingsCache, "current", lambda self: (dead,))
    assert matching(world, "is:dead") == ["layers.0"]
    assert [each["number"] for each in world.json("taps", match="is:dead")["taps"]] == [1]


def test_without_a_server_no_layer_is_called_dead() -> None:
    store = Store(2**22)
    store.announce(TAPS)
    assert [tap.module for tap in store.taps("!is:nan", "output").taps] == ["", "layers.0", "layers.1"]
    with pytest.raises(PatternError, match="'is:dead' needs the findings of a server"):
        store.taps("is:dead")


@pytest.mark.parametrize("page", ["flow", "histograms", "hooks", "tensors", "events", "layer"])
def test_an_invalid_text_is_explained_at_the_box_and_hides_nothing(world: World, page: str) -> None:
    html = world.client.get(f"/runs/one/{page}", params={"f": "re:("}).text
    assert "&#39;re:(&#39; is not a regular expression: missing )" in html
    bare = world.client.get(f"/runs/one/{page}").text
    links = re.compile(r"layer\?module=[\w.]+")
    main = html.index("<main")
    assert set(links.findall(html, main)) == set(links.findall(bare, bare.index("<main")))
    found = world.json("runs/one/find", f="re:(")
    assert "not a regular expression" in found.pop("problem")
    assert found == {"fits": False, "paths": []}


def test_base_classes_count_everywhere(world: World) -> None:
    run = open_run(world.runs, "bases")
    run.store.describe([replace(MODULES[0], path="net", type="MyLinear", bases=("Linear",))])
    for text in ("type:Linear", "type:MyLinear", "type:Module"):
        assert [each["path"] for each in world.json("runs/bases/modules", match=text)["modules"]] == ["net"]
    assert world.json("runs/bases/find", f="type:linear") == {"problem": "", "fits": False, "paths": []}


def test_a_live_stream_refuses_changing_states(world: World) -> None:
    answer = world.client.get("/api/v1/live", params={"match": "is:nan"})
    assert answer.status_code == 400
    assert "because it changes during the training: use 'is:leaf' or 'is:root'" in answer.json()["error"]


def test_a_module_that_held_a_nan_long_ago_is_still_found(world: World) -> None:
    run = open_run(world.runs, "long")
    run.store.describe(MODULES, COVERAGE, HOOKS)
    tap = Tap("layers.0", "output")
    for step in range(2000):
        new = (tap,) if step == 0 else ()
        run.store.append(make_frame(step, [math.nan if step == 3 else 1.0], new_taps=new))
        if step % 700 == 0:
            assert finder_of(run, "is:nan").fits("layers.0") == (step > 3)
    assert finder_of(run, "is:nan").fits("layers.0")


def test_a_module_that_becomes_nonfinite_is_found_from_then_on(world: World) -> None:
    run = open_run(world.runs, "later")
    run.store.describe(MODULES, COVERAGE, HOOKS)
    taps = (TAPS[1], TAPS[2])
    run.store.append(make_frame(0, [1.0, 1.0], new_taps=taps))
    assert not any(map(finder_of(run, "is:nan").fits, run.store.facts()))
    run.store.append(make_frame(1, [1.0, math.inf]))
    assert [*filter(finder_of(run, "is:nan").fits, run.store.facts())] == ["layers.1"]


@pytest.mark.parametrize("page", ["flow", "histograms", "hooks", "layer"])
@pytest.mark.parametrize("text", FOUND)
def test_every_page_shows_the_modules_that_match(world: World, page: str, text: str) -> None:
    html = world.client.get(f"/runs/one/{page}", params={"f": text, "kind": "output"}).text
    main = html[html.index("<main") : html.index("</main")]
    fits = finder_of(world.run, text).fits
    shown = set(re.findall(r"module=([\w.]+)", main))
    known = {"layers.0", "layers.1", *(("head",) if page == "layer" else ())}
    assert shown & known == {path for path in known if fits(path)}


def test_the_example_values_are_as_the_filters_expect() -> None:
    assert math.isnan(value_at(7, 1))
    assert math.isinf(value_at(9, 2))
