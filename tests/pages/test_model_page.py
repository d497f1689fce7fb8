"""The Model page and the drawer as rendered by the server, from a real training."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from torch import nn

import hookcore
from hookcore.reading.answers import Module
from hookcore.records import Event, ModuleRecord, Tap
from hookcore.store import Store
from hookcore.store.incidents import Link, Replay
from hookcore_app import assets
from hookcore_app.analysis.modules import why_uncaptured
from hookcore_app.pages.frame import TABS, names_of
from hookcore_app.pages.views.layer import box_id
from hookcore_app.runs.parts import End
from tests.api_world import World, open_run
from tests.build import append, frame, stats_of
from tests.harness import seed_all

STEPS, BAD = 30, 20
HTML = {"Accept": "text/html"}


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


@pytest.fixture(scope="module")
def world() -> World:
    seed_all()
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = World()
    run = open_run(found.runs, "real")
    with hookcore.watch(model, server=None, every=1, budget=None) as watcher:
        for step in range(STEPS):
            if step == BAD:
                with torch.no_grad():
                    model[2].inner.weight[0, 0] = float("nan")  # type: ignore[union-attr, operator]
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            watcher.log(loss=loss.item())
            optimizer.step()
        watcher.flush()
        store = watcher.store
    run.end = End(STEPS - 1)
    run.swap(store, True)
    return found


def page(world: World, path: str) -> str:
    answer = world.client.get(f"/runs/real/{path}".rstrip("/"), headers=HTML)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def test_the_table_lists_every_call_with_its_sizes(world: World) -> None:
    text = page(world, "model?part=boxes")
    rows = re.findall(r"<tr>\s*<th.*?</tr>", text, re.DOTALL)
    said = world.json("model", run="real")["boxes"]
    assert len(rows) == 1 + sum(box["kind"] != "repeat" for box in said)
    inner = next(row for row in rows if ">2.inner<" in re.sub("<wbr>", "", row))
    assert "512 FLOP" in inner  # 2 * 4 * 8 * 8
    assert "4 \u00d7 8 float32" in inner
    assert "as learned in step 0" in text


def test_the_find_box_selects_rows_and_says_if_there_are_none(world: World) -> None:
    assert "3.inner" in page(world, "model?f=*.inner&part=boxes").replace("<wbr>", "")
    assert "matches no module" in page(world, "model?f=nowhere&part=boxes")


def test_a_link_shows_the_box_with_the_first_nan(world: World) -> None:
    text = page(world, "model?part=onset").replace("<wbr>", "")
    assert re.search(r"First NaN or infinity: .*2\.inner.* at step 20", text)
    assert "may have been first" not in text  # each step was captured
    assert re.search(rf"step={BAD}&amp;kind=output&amp;box=2\.inner", text)


def test_a_first_nan_after_uncaptured_steps_may_not_be_the_first() -> None:
    found = World()
    run = open_run(found.runs, "real")
    taps = (Tap("a", "output"),)
    append(run.store, 0, [1.0], taps)
    append(run.store, 9, [float("nan")])
    onset = page(found, "model?part=onset")
    assert "NaN began between steps 1 and 9; the layer isn&#39;t known." in onset
    assert "runs/real/problems/incident?id=nonfinite-9" in onset
    assert "box=" not in onset


def test_a_first_nan_that_only_a_replay_knows_links_to_its_incident_since_the_picture_has_no_values_of_it() -> None:
    found = World()
    run = open_run(found.runs, "real")
    taps = (Tap("a", "output"), Tap("b", "output"))
    append(run.store, 0, [1.0, 1.0], taps)
    alarm = Event(9, 9.0, "nonfinite-step", "", "error", about={"found": "loss", "value": "nan", "previous": 8})
    run.store.append(frame(9, stats_of(0), events=(alarm,)))
    run.store.explain(Replay(9, Link(1, taps[1], 9), float("nan")))
    onset = page(found, "model?part=onset")
    assert re.search(r"First NaN or infinity: .*>b<.* at step 9", onset)
    assert "runs/real/problems/incident?id=nonfinite-9" in onset
    assert "box=" not in onset


def test_a_kind_that_was_switched_off_says_where_it_was_captured_last() -> None:
    taps = (Tap("a", "output"), Tap("a", "update", "weight"))
    frames = [
        frame(step, stats_of(2 if step <= 9 else 1, 1.0), taps if step == 0 else (), numbers=[0, 1][: 2 - (step > 9)])
        for step in range(0, 31, 3)
    ]
    store = Store()
    for each in frames:
        store.append(each)
    assert why_uncaptured(store, "output", True) == ""
    assert why_uncaptured(store, "update", True, 9, 9) == ""
    assert why_uncaptured(store, "update", True) == "No update was captured at step 30; the newest is at step 9."
    assert (
        why_uncaptured(store, "update", True, 12, 12) == "No update was captured at step 12; the newest is at step 9."
    )
    assert why_uncaptured(store, "update", True, 10, 20).startswith("No update was captured at step 18;")
    assert (
        why_uncaptured(store, "output", True, 10, 10)
        == "No activation was captured at step 10; the newest is at step 30."
    )
    assert "Capture page" in why_uncaptured(store, "input_grad", True)
    assert "heatmap starts" in why_uncaptured(Store(), "output", True)
    assert why_uncaptured(Store(), "output", False) == "No step was captured."  # nothing can arrive later


def test_the_picture_says_why_all_its_boxes_are_gray(world: World) -> None:
    assert "No activation" not in page(world, "model?kind=output")
    assert "No update was captured at step" in page(world, "model?kind=update")
    assert "No update was captured at step" in page(world, "model?kind=update&part=why")


def test_box_ids_are_the_same_as_in_the_scripts() -> None:
    assert box_id(Tap("", "output")) == "."
    assert box_id(Tap("a/b c.d", "output", call=2)) == "a%2Fb%20c.d;2"
    assert box_id(Tap("a", "param", call=2)) == "a"
    assert box_id(Tap("a", "output", phase="eval")) == "a;e"
    assert unquote(box_id(Tap("blocks.\u03b2", "output"))) == "blocks.\u03b2"


def test_the_drawer_has_the_values_of_the_held_step_and_its_incidents(world: World) -> None:
    query = "drawer?module=2.inner&part=about&part=numbers&part=happened&part=kept"
    text = page(world, f"{query}&step=10")
    exact = world.json("series", run="real", tap=["2.inner output"], stat="norm", first=10, last=10)
    assert f'value="{exact["series"][0]["mean"][0]}"' in text
    assert "None for this layer" in text
    assert "step 16: the snapshot nearest to step 10" in text, "one was captured by itself"
    assert "<dt>Call</dt>" not in text, "it is called once"
    later = page(world, f"{query}&step={BAD}")
    assert "nonfinite-row" in later
    assert f"step {BAD}" in later.partition("drawer-happened")[2]


def test_the_drawer_of_one_call_says_so(world: World) -> None:
    run = open_run(world.runs, "shared")
    taps = Tap("again", "output"), Tap("again", "output", call=1)
    append(run.store, 0, [1.0, 2.0], taps)
    run.store.describe([ModuleRecord("again", "Linear", None)])
    query = "module=again&call=1&part=numbers&part=kept"
    shown = world.client.get(f"/runs/shared/drawer?{query}", headers=HTML).text
    assert "Newest values of this call" in shown
    assert "No snapshot of this call." in shown
    assert "this layer" not in shown
    none = world.client.get(f"/runs/shared/drawer?{query}&call=7", headers=HTML).text
    assert "Nothing of this call was captured." in none
    assert "this call" not in page(world, "drawer?module=2.inner&part=numbers&part=kept")


def test_a_layer_with_many_events_says_how_many_are_not_listed(world: World) -> None:
    run = open_run(world.runs, "noisy")
    append(run.store, 0, [1.0], (Tap("a[0]", "output"),))
    run.store.describe([ModuleRecord("a[0]", "Linear", None)])
    for number in range(50):
        run.store.add_event(Event(0, 0.0, f"event {number}", "odd", "warning", "a[0]"))
    layer = world.client.get("/runs/noisy/model/layers?module=a[0]", headers=HTML).text
    more = re.search(r'href="([^"]*)">20 more', layer)
    assert more is not None
    listed = world.client.get(f"/{more[1].lstrip('/')}".replace("&amp;", "&"), headers=HTML).text
    assert listed.count("Event 4") > 10
    drawer = world.client.get("/runs/noisy/drawer?module=a[0]&part=happened", headers=HTML).text
    assert "44 more" in drawer


def test_the_drawer_by_itself_is_the_page_of_the_layer_and_an_unknown_module_is_not_found(world: World) -> None:
    answer: Any = world.client.get("/runs/real/drawer?module=2.inner&step=3", headers=HTML, follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == "/runs/real/model/layers?module=2.inner&step=3"
    assert world.client.get("/runs/real/drawer?module=nowhere&part=about", headers=HTML).status_code == 404


def test_the_pages_with_a_drawer_have_its_script_and_its_style(world: World) -> None:
    """Names of layers open the drawer on pages that have one, and lead to the layer's page on others."""
    shown = {tab.page: tab.has_drawer for tab in TABS.values() if tab.key}
    assert {name for name, has_drawer in shown.items() if not has_drawer} == {
        "layer", "tensors", "precision", "metrics", "board", "media", "system", "capture", "rules", "hooks",
    }  # fmt: skip
    for name, has_drawer in shown.items():
        text = page(world, TABS[name].path.lstrip("/"))
        script = assets.read(f"joined/{name}.js")
        assert script is not None
        found = 'id="drawer"' in text, "css/drawer.css" in text, b"js/drawer/drawer.js" in script.content
        assert found == (has_drawer,) * 3, name


def module(path: str, type: str, parent: str | None, weight: tuple[int, ...] = ()) -> Module:
    return Module(path, parent, type, 0, 0, (), {"weight": weight} if weight else {}, "", None, ())


def test_names_leave_out_what_all_paths_begin_with_and_spell_out_bare_numbers() -> None:
    plain = [module("", "Wrapper", None), module("inner", "Sequential", "")]
    layers = [
        module("inner.0", "Linear", "inner", weight=(64, 20)),
        module("inner.1", "GELU", "inner"),
        module("inner.tail", "LayerNorm", "inner", weight=(64,)),
    ]
    names = names_of([*plain, *layers])
    assert [names.of(each.path) for each in (*plain, *layers)] == [
        "Wrapper",
        "inner",
        "0 Linear(20, 64)",
        "1 GELU",
        "tail",
    ]
    assert json.loads(names.json) == {
        "root": "Wrapper",
        "shared": "inner.",
        "spelled": {"inner.0": "0 Linear(20, 64)", "inner.1": "1 GELU"},
    }
    blocks = [module("", "Net", None), module("h", "ModuleList", ""), module("fc", "Linear", "")]
    blocks += [module(f"h.{place}", "Block", "h") for place in range(3)]
    assert json.loads(names_of(blocks).json) == {"root": "Net", "shared": "", "spelled": {}}
    assert (names_of([]).json, names_of([]).of("a.b")) == ("", "a.b")
    found = [module("GPT", "GPT", None), module("GPT/norm", "LayerNorm", "GPT"), module("GPT/h", "Sequential", "GPT")]
    found += [module("GPT/h.0", "Linear", "GPT/h", weight=(64, 20))]
    assert [names_of(found).of(each.path) for each in found] == ["GPT", "norm", "h", "h.0 Linear(20, 64)"]
    several = [*found, module("Other", "Other", None), module("Other/norm", "LayerNorm", "Other")]
    assert names_of(several).of("GPT/norm") == "GPT/norm"
