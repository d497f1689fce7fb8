"""The query language for runs: on the page, by REST, and by the client."""

from __future__ import annotations

import contextlib
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.errors import ArgumentError
from hookcore_app.runs.parts import End
from hookcore_app.runs.query import Traits, find_runs
from tests.build import append, open_run
from tests.serving import World, make_world

RUNS: dict[str, dict[str, Any]] = {
    "slow": {
        "config": {"lr": 0.01, "model.width": 64, "model.act": "ReLU", "amp": True, "seed": None},
        "tags": ("sweep", "Base line"),
        "group": "widths",
        "notes": "the first (of many)",
    },
    "fast": {"config": {"lr": 0.5, "model.width": 128, "model.act": "GELU", "amp": False}, "tags": ("sweep",)},
    "plain": {"facts": {"optimizer": "AdamW", "optimizer.lr": 0.2, "git.dirty": False}, "host": "box-7"},
}


@pytest.fixture
def world() -> World:
    world = make_world()
    for place, (name, about) in enumerate(RUNS.items()):
        losses = {"train/loss": 1.0 / (place + 1), "accuracy": float("nan") if place == 2 else 0.5}
        run = open_run(world.runs, name, started_s=float(10 - place), **about)
        for step in range(place + 1):
            append(run.store, step, [], scalars=losses)
    found = world.runs.get("fast")
    assert found is not None
    found.end = End(1)
    return world


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "slow fast plain"),
        ("lr>0.1", "fast plain"),  # also finds the optimizer's
        ("lr > 0.1 and tag:sweep", "fast"),
        ("lr<=0.01", "slow"),
        ("lr=1e-2", "slow"),
        ("lr!=0.01", "fast plain"),
        ("optimizer.lr>0.1", "plain"),
        ("width:64", "slow"),
        ("width:6", ""),  # a number is equal or not
        ("act:elu", "slow fast"),
        ("act=elu", ""),
        ("act=relu", "slow"),
        ("amp:true", "slow"),
        ("seed:none", "slow"),
        ("dirty:false", "plain"),
        ("tag:sweep", "slow fast"),
        ('tag:"base line"', "slow"),
        ("tag!=sweep", "plain"),
        ("not tag:sweep", "plain"),
        ("state:ended", "fast"),
        ("state:live lr>0", "slow plain"),
        ("group:widths or host:box", "slow plain"),
        ("tag:sweep and (lr>0.1 or width:64)", "slow fast"),
        ("not (tag:sweep and lr>0.1)", "slow plain"),
        ("not not fast", "fast"),
        ("first many", "slow"),
        ('"first (of"', "slow"),
        ("GELU", "fast"),
        ("loss<0.6", "fast plain"),
        ("accuracy>0", "slow fast"),  # NaN isn't above anything
        ("steps>=2", "fast plain"),
        ("nothing", ""),
        ("AND", None),
        ("lr>0.1 LR", ""),
    ],
)
def test_a_query_finds_runs(world: World, query: str, names: str | None) -> None:
    runs = [Traits(run) for run in world.runs.all()]
    if names is None:
        with pytest.raises(ArgumentError):
            find_runs(query, runs)
    else:
        assert " ".join(each.run.id for each in find_runs(query, runs)) == names


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lr>", "a value is missing after lr>: write, for example, lr>0.1"),
        ("lr>fast", "'fast' is not a number"),
        ("lrr>1", "no run has a value 'lrr'. Did you mean 'lr'?"),
        ("heigth:1", "no run has a value 'heigth'."),
        ("state:crash", "use one of live, waiting, crashed, lost, stopped, ended. Did you mean 'crashed'?"),
        ("tag>1", "write tag:1"),
        ("lr>0 and", "a condition is missing at the end"),
        ("or lr>0", "a condition is missing before 'or'"),
        ("(lr>0", "unclosed parenthesis ("),
        ("lr>0)", "unmatched parenthesis )"),
        ('"open', 'unclosed quote "'),
        ("not " * 30 + "x", "nested more than 20 deep"),
        ("x " * 101, "101 parts: at most"),
    ],
)
def test_an_invalid_query_says_what_is_wrong_and_what_to_write(world: World, query: str, words: str) -> None:
    answer = world.client.get("/api/v1/runs", params={"query": query})
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert words in world.client.get("/", params={"f": query}).text.replace("&#39;", "'").replace("&gt;", ">").replace(
        "&#34;", '"'
    )


@given(st.text(st.sampled_from(string.ascii_letters[:4] + " ()\"'<>=!:0."), max_size=40))
def test_any_text_is_a_query_or_an_error_that_says_why(text: str) -> None:
    with contextlib.suppress(ArgumentError):
        assert find_runs(text, []) == []


def test_an_unknown_name_is_not_an_error_while_there_are_no_runs() -> None:
    assert find_runs("lr>0.1", []) == []


def test_rest_finds_the_same_runs_as_the_page_part_by_part(world: World) -> None:
    first = world.client.get("/api/v1/runs", params={"query": "tag:sweep", "limit": 1}).json()
    assert (first["total"], first["next"], [run["id"] for run in first["runs"]]) == (2, "slow", ["slow"])
    second = world.client.get("/api/v1/runs", params={"query": "tag:sweep", "limit": 1, "after": "slow"}).json()
    assert (second["next"], [run["id"] for run in second["runs"]]) == (None, ["fast"])
    page = world.client.get("/", params={"f": "tag:sweep"}).text
    assert [f'data-run="{name}"' in page for name in RUNS] == [True, True, False]
    assert "2 of 3" in page


def test_results_of_a_run_on_disk_are_found_by_its_summary(world: World) -> None:
    run = world.runs.get("slow")
    assert run is not None
    run.loaded, run.saved.summary = False, json.loads('{"results": {"loss": 0.125, "acc": "NaN", "odd": [1]}}')
    assert [each.run.id for each in find_runs("loss=0.125", [Traits(run)])] == ["slow"]
    assert sorted(Traits(run).results()) == ["acc", "loss"]
    run.saved.summary = {"results": "odd"}
    assert not list(Traits(run).results())
