"""The list of snapshots on the page Tensors."""

from __future__ import annotations

import re

import pytest

from hookcore.records import Snapshot
from tests.api_world import MATRIX, TAPS, World


@pytest.fixture
def world() -> World:
    return World()


def test_the_list_of_snapshots_has_pages_and_marks_the_chosen_one_and_those_that_look_alike(world: World) -> None:
    for step in range(400):
        shape, data = ((2, 3), MATRIX) if step % 2 else ((6,), MATRIX.ravel())
        world.run.store.add_snapshot(Snapshot(TAPS[1], 1000 + step, 1000.0 + step, "float32", shape, data))
    numbers = [each.number for each in world.run.reader.snapshots()][::-1]

    def page(**query: str | int) -> str:
        return world.client.get("/runs/one/model/tensors", params={"part": "kept", **query}).text

    text = page(snapshot=numbers[0], beside=numbers[2])
    assert re.findall(r'id="kept-(\d+)"', text) == [str(each) for each in numbers[:300]]
    assert re.findall(r'id="kept-(\d+)" aria-current', text) == [str(numbers[0])]
    assert text.count(">Compare</button>") == 149  # every second one has the same shape
    assert re.findall(r'data-set="beside=(\d*)" aria-pressed="true"', text) == [""]
    rest = page(snapshot=numbers[0], row=300)
    assert re.findall(r'id="kept-(\d+)"', rest) == [str(each) for each in numbers[300:]]
