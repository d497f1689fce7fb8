"""Held at a step, no page shows a number from another step: pages of a real training, compared with REST."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.records import Snapshot
from hookcore.store import STAT_NAMES
from hookcore_app.runs.parts import End
from tests.api_world import World, open_run
from tests.harness import seed_all

EVERY = 3
STEPS = 60
BAD = 30  # its input is NaN, and its update is skipped
DATA = re.compile(r'<data[^>]* value="([^"]*)"')
TABLE, ROW = re.compile(r"<table.*?</table>", re.DOTALL), re.compile(r"<tr.*?</tr>", re.DOTALL)
CELL, TAG = re.compile(r"<t[hd].*?</t[hd]>", re.DOTALL), re.compile(r"<[^>]*>")
EVERYTHING = ",".join(STAT_NAMES)
PAGES = ("", "/flow", "/layer?module=0", "/layer?module=3", "/layer?module=", "/histograms", "/system", "/hooks")


@dataclass
class Trained:
    """A run of a real training, and what the training loop itself knows."""

    world: World
    losses: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, float] = field(default_factory=dict)
    _known: dict[tuple[int, int], tuple[set[str], float]] = field(default_factory=dict)  # by two steps: see `unknown`

    @property
    def captured(self) -> set[int]:
        said = self.world.json("timeline", run="real")
        assert said["captured_all"]
        return set(said["captured_first"])

    def page(self, path: str, **query: Any) -> str:
        given = "&".join(f"{name}={value}" for name, value in query.items())
        answer = self.world.client.get(
            f"/runs/real{path}{'&' if '?' in path else '?'}{given}", headers={"Accept": "text/html"}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def unknown(self, shown: set[str], step: int, logged: int) -> set[str]:
        """Return the numbers that REST lacks: of tensors in one step, and logged values in another one."""
        if (step, logged) not in self._known:  # as all pages show the same steps
            self._known[step, logged] = self._ask(step, logged)
        found, norm = self._known[step, logged]
        return {each for each in shown - found if not math.isclose(float(each), norm, rel_tol=1e-6)}

    def _ask(self, step: int, logged: int) -> tuple[set[str], float]:
        """Return the numbers that REST has, including the norm of all gradients."""
        said = self.world.json("taps", run="real", limit=1000)["taps"]
        names = self.world.json("scalars", run="real")["names"]
        scalars = self.world.json("scalars", run="real", name=names, first=logged, last=logged)
        found = {text(value) for series in scalars["series"] for value in series["mean"]}
        squares = 0.0
        for tap in said:
            series = self.world.json("series", run="real", tap=tap["number"], stat=EVERYTHING, first=step, last=step)
            values = dict(zip(STAT_NAMES, (each["mean"] for each in series["series"]), strict=True))
            found |= {text(value) for each in values.values() for value in each}
            squares += sum(float(each) ** 2 for each in values["norm"]) if tap["kind"] == "param_grad" else 0
        return found, math.sqrt(squares)


def text(value: Any) -> str:
    """Return a number from JSON, which writes NaN as a string, in a uniform spelling."""
    return repr(float(value))


@pytest.fixture(scope="module")
def trained() -> Trained:
    seed_all()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = Trained(World())
    run = open_run(found.world.runs, "real")
    with hookcore.watch(model, server=None, every=EVERY, budget=None) as watcher:
        for step in range(STEPS):
            optimizer.zero_grad()
            output = model(torch.full((16, 8), math.nan) if step == BAD else torch.randn(16, 8))
            loss = output.square().mean()
            loss.backward()
            watcher.log(loss=loss.item(), odd=float(step % 2)) if step % 2 else watcher.log(loss=loss.item())
            if step == BAD:
                optimizer.zero_grad()
            optimizer.step()
            found.losses[step] = loss.item()
            found.outputs[step] = output.detach().square().mean().sqrt().item()
        watcher.flush()
        store = watcher.store
        tap = next(tap for tap in store.taps().taps if (tap.module, tap.kind) == ("0", "output"))
        for step in (9, 45):
            store.add_snapshot(Snapshot(tap, step, 1.0, "float32", (2,), torch.ones(2).numpy()))
    run.end = End(STEPS - 1)
    run.swap(store, True)
    return found


def test_rest_returns_the_values_that_the_training_computed(trained: Trained) -> None:
    world = trained.world
    said = world.json("series", run="real", tap=["(root) output"], stat="rms", points=1000)["series"][0]
    assert set(said["first_step"]) >= set(range(0, STEPS, EVERY))
    for step, value in zip(said["first_step"], said["mean"], strict=True):
        if step != BAD:
            assert float(value) == pytest.approx(trained.outputs[step], rel=1e-5)
    losses = world.json("scalars", run="real", name="loss")["series"][0]["mean"]
    assert [float(each) for each in losses] == pytest.approx(list(trained.losses.values()), nan_ok=True)


def steps_of(html: str) -> set[str]:
    """Return the contents of the "step" columns of all tables."""
    found = set()
    for table in TABLE.findall(html):
        head, *rows = [[TAG.sub("", cell).strip() for cell in CELL.findall(row)] for row in ROW.findall(table)]
        if "step" in head:
            found |= {row[head.index("step")] for row in rows if len(row) == len(head)}
    return found


@pytest.mark.parametrize("step", [0, BAD, 33, 34, 57, 58, STEPS - 1])
@pytest.mark.parametrize("path", PAGES)
def test_a_held_page_has_only_numbers_of_its_step(trained: Trained, path: str, step: int) -> None:
    html = trained.page(path, step=step)
    shown = {text(value) for value in DATA.findall(html)}
    assert trained.unknown(shown, step, step) == set()
    is_captured = step in trained.captured
    assert steps_of(html) <= {str(step)}
    if path in ("/flow", "/layer?module=0", "/layer?module=3"):
        assert bool(shown) == bool(steps_of(html)) == is_captured, "values where there are some, and none elsewhere"
    assert ("The nearest captured" in html) != is_captured


def test_all_numbers_of_a_step_are_on_the_page_of_its_layer(trained: Trained) -> None:
    shown = {text(value) for value in DATA.findall(trained.page("/layer?module=0", step=33))}
    said = trained.world.json("series", run="real", tap=["0 output"], stat="mean,rms,max", first=33, last=33)
    assert {text(series["mean"][0]) for series in said["series"]} <= shown


@pytest.mark.parametrize("path", PAGES)
def test_a_range_shows_its_newest_numbers(trained: Trained, path: str) -> None:
    html = trained.page(path, steps="12-20")
    shown = {text(value) for value in DATA.findall(html)}
    assert trained.unknown(shown, 18, 20) == set()
    assert steps_of(html) <= {"18"}


def test_held_pages_show_no_later_events(trained: Trained) -> None:
    for path in ("", "/events", "/layer?module=0", "/flow"):
        before, at = (trained.page(path, step=step, part=part_of(path)) for step in (BAD - EVERY, BAD))
        assert "nonfinite" not in before.replace("is:nonfinite", ""), path
        assert "NaN" in at, path


def part_of(path: str) -> str:
    """Return the lists of a page, without the timeline, which shows the whole run."""
    return {"": "findings", "/events": "list", "/layer?module=0": "values", "/flow": "layers"}[path]


@pytest.mark.parametrize(("step", "near"), [(30, 45), (20, 9), (9, 9), (2, 9), (59, 45)])
def test_tensors_come_from_the_nearest_snapshot_and_name_it(trained: Trained, step: int, near: int) -> None:
    html = trained.page("/tensors?module=0", step=step)
    assert f"step {near}" in html
