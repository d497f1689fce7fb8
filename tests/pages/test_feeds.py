"""The modules that feed a module and that it feeds, as shown on the Layer page."""

from __future__ import annotations

import pytest

from hookcore.reading import StoreReader
from hookcore.records import ModuleRecord
from hookcore.records.flow import Flow, FlowCall
from hookcore.store import Store
from hookcore_app.pages.views.layer import Feed, feeds_of
from tests.api_world import World, fill, open_run
from tests.build import frame, stats_of_magnitudes

CALLS = (
    FlowCall("stem"),
    FlowCall("block.f", fed_by=(0,)),
    FlowCall("block.g", fed_by=(1,), how="order"),
    FlowCall("block", fed_by=(0, 2)),
    FlowCall("head", fed_by=(3,)),
    FlowCall("head", 1, fed_by=(0, 4)),
    FlowCall("blocks", fed_by=(5,), how="order"),
    FlowCall("", returns=(6,)),
)


def filled() -> Store:
    store = Store(2**20)
    store.append(
        frame(0, stats_of_magnitudes([], "rms"), flow=Flow(0, (FlowCall("old"), FlowCall("stem", fed_by=(0,)))))
    )
    store.append(frame(1, stats_of_magnitudes([], "rms"), flow=Flow(1, CALLS)))
    return store


def named(feeds: tuple[Feed, ...]) -> list[str]:
    return [each.name + ("?" if each.guessed else "") for each in feeds]


@pytest.mark.parametrize(
    ("path", "fed_by", "feeds"),
    [
        ("stem", [], ["block.f", "block", "head"]),
        ("block.f", ["stem"], ["block.g?"]),
        ("block.g", ["block.f?"], ["block"]),
        ("block", ["stem"], ["head"]),  # with the modules inside
        ("head", ["block", "stem"], ["blocks?"]),  # both calls
        ("blocks", ["head?"], []),
        ("old", [], ["stem"]),  # no longer part of the model
    ],
)
def test_only_tensors_that_cross_a_module_boundary_count(path: str, fed_by: list[str], feeds: list[str]) -> None:
    found = feeds_of(StoreReader(filled()), path)
    assert found is not None
    assert named(found.fed_by) == fed_by
    assert named(found.feeds) == feeds


def test_a_module_that_never_ran_has_no_neighbors() -> None:
    assert feeds_of(StoreReader(filled()), "block.unused") is None
    assert feeds_of(StoreReader(Store(2**20)), "stem") is None


def test_the_page_links_to_the_neighbors() -> None:
    world = World()
    run = fill(open_run(world.runs, "one"))
    run.store.describe([ModuleRecord("blocks", "Net", ""), ModuleRecord("head", "Linear", "")])
    text = world.client.get("/runs/one/model/layers?module=layers.1").text
    before, after = text.partition('id="fed-by"')[2].split("</p>")[:2]
    assert 'href="runs/one/model/layers?module=layers.0"' in before
    assert ">Net ?</a>" in after
    assert 'title="guessed from the order of execution"' in after
    assert 'id="fed-by"' not in world.client.get("/runs/one/model/layers?module=head").text
