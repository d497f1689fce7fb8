"""The charts of the page Layer, as the server plans them for its script."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from hookcore.records import ModuleRecord, Tap
from tests.build import frame, make_info, stats_of
from tests.serving import make_world

LINEAR = (
    Tap("m", "param_grad", "weight"),
    Tap("m", "param_grad", "bias"),
    Tap("m", "output"),
    Tap("m", "output_grad"),
    Tap("m", "update", "weight"),
    Tap("m", "param", "weight"),
)
OUTPUT = LINEAR[2]


def page_of(taps: tuple[Tap, ...], **asked: str) -> str:
    """Return the page of a module with these taps."""
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    modules = (ModuleRecord("", "Net", None), ModuleRecord("m", "Linear", ""))
    run.store.describe(modules, (), ())
    run.store.append(frame(0, stats_of(len(taps)), taps))
    query = urlencode({"module": "m", **asked})
    return str(world.client.get(f"/runs/one/model/layers?{query}", headers={"Accept": "text/html"}).text)


def data_in(page: str, name: str) -> list[dict[str, Any]]:
    found = re.search(rf"data-{name}='([^']*)'", page)
    assert found is not None
    data: list[dict[str, Any]] = json.loads(found[1])
    return data


def plans_of(taps: tuple[Tap, ...], **asked: str) -> list[dict[str, Any]]:
    return data_in(page_of(taps, **asked), "plans")


def chosen_in(page: str, name: str) -> str:
    """Return what a choice among tensors shows."""
    found = re.search(rf'<select name="{name}" data-chosen="([^"]*)"', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("taps", "charts"),
    [
        (LINEAR, ["values", "gradients", "ratio", "shares"]),
        (LINEAR[2:4], ["values", "gradients", "percentiles", "shares"]),
        (LINEAR[:2], ["values", "gradients", "percentiles", "shares"]),
        (LINEAR[3:4], ["gradients"]),
        ((*LINEAR, Tap("m", "probe", "rank")), ["values", "gradients", "ratio", "probes"]),
    ],
)
def test_a_module_has_at_most_four_charts_of_what_was_captured(taps: tuple[Tap, ...], charts: list[str]) -> None:
    assert [plan["id"] for plan in plans_of(taps)] == charts


def test_a_chart_with_more_tensors_than_lines_says_how_many_there_are() -> None:
    many = plans_of((OUTPUT, *(Tap("m", "param_grad", f"w{place}") for place in range(7))))[1]
    assert (many["title"], len(many["parts"])) == ("Gradients: norm, 4 of 7", 4)
    assert plans_of(LINEAR)[1]["title"] == "Gradients: norm"


def test_lines_are_named_by_their_tensors_and_probes_by_the_user() -> None:
    plans = plans_of((*LINEAR, Tap("m", "probe", "rank")))
    assert plans[0]["title"] == "Activation: mean, min, and max"
    assert [line["name"] for line in plans[1]["parts"]] == ["activation gradient", "weight gradient", "bias gradient"]
    assert [(line["name"], line["make"]) for line in plans[3]["parts"]] == [("rank", "mean")]


def test_the_address_names_the_tensor_and_what_is_missing_or_wrong_is_the_first_one() -> None:
    for asked, index in (({"index": "bias"}, "bias"), ({}, "weight"), ({"index": "gone"}, "weight")):
        page = page_of(LINEAR, kind="param_grad", **asked)
        assert {line["tap"]["index"] for plan in data_in(page, "plans") for line in plan["parts"]} == {index}
        assert [tap["index"] for tap in data_in(page, "distributions")] == [index]
        assert chosen_in(page, "index") == index
    assert [plan["id"] for plan in plans_of(LINEAR, kind="update")] == ["values", "ratio", "percentiles", "shares"]
    assert [plan["id"] for plan in plans_of(LINEAR, kind="input")] == [plan["id"] for plan in plans_of(LINEAR)]


def test_call_and_phase_choose_among_the_tensors_of_a_kind() -> None:
    taps = (OUTPUT, replace(OUTPUT, call=1), replace(OUTPUT, phase="eval"))
    [line] = plans_of(taps, kind="output", call="1")[0]["parts"]
    assert line["tap"]["call"] == 1
    page = page_of(taps, phase="eval")
    assert data_in(page, "plans")[0]["parts"][0]["tap"]["phase"] == "eval"
    assert chosen_in(page, "phase") == "eval"
    assert "evaluation</option>" in page


def test_distributions_are_of_the_first_tensor_of_each_kind() -> None:
    kinds = [tap["kind"] for tap in data_in(page_of(LINEAR), "distributions")]
    assert kinds == ["output", "output_grad", "param", "param_grad", "update"]


@pytest.mark.parametrize("taken", [{"phase": "eval"}, {"call": 1}])
def test_a_module_captured_only_in_evaluations_or_later_calls_has_charts(taken: dict[str, Any]) -> None:
    page = page_of((replace(OUTPUT, **taken),))
    assert [plan["id"] for plan in data_in(page, "plans")] == ["values", "percentiles", "shares"]
    assert len(data_in(page, "distributions")) == 1
