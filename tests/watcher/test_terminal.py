"""What a training says in its terminal: its page, each error as it begins, and its problems at the end."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.config import Settings
from hookcore.delivery.delivery import Delivery, new_run
from hookcore.delivery.sinks import StoreSink
from hookcore.records.wire import Place
from hookcore.store import Store
from hookcore.watcher import parts_of
from hookcore.watcher.callbacks import MAX_LINES, MINUTE_S, Terminal
from tests.inside import run_id_of, threads_named
from tests.serving import TOKEN, served
from tests.waiting import wait_for


def an_incident(number: int, severity: str = "error", muted: bool = False) -> Any:
    sentence = f"Problem {number} began at step {number}."
    return SimpleNamespace(
        id=f"id-{number}",
        severity=severity,
        sentence=sentence,
        first_step=number,
        earliest_step=number,
        rule="nonfinite",
        muted=muted,
    )


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def terminal(lines: list[str], now: list[float]) -> Terminal:
    return Terminal(lines.append, lambda: "http://box/runs/one", lambda: now[0])


def test_an_error_is_one_line_with_a_link(terminal: Terminal, lines: list[str]) -> None:
    terminal.begin(an_incident(3))
    assert lines == ["Problem 3 began at step 3. http://box/runs/one/problems/incident?id=id-3"]


def test_many_errors_are_a_few_lines_each_minute(terminal: Terminal, lines: list[str], now: list[float]) -> None:
    for number in range(20):
        terminal.begin(an_incident(number))
    assert len(lines) == MAX_LINES
    now[0] = MINUTE_S
    terminal.begin(an_incident(20))
    assert len(lines) == MAX_LINES + 1


def test_the_end_names_the_worst_problems_first_and_counts_the_others(terminal: Terminal, lines: list[str]) -> None:
    kinds = ["warning", "info", "error", "warning", "error", "warning"]
    terminal.sum_up([an_incident(number, kind) for number, kind in enumerate(kinds)])
    terminal.sum_up([an_incident(9)])
    assert lines == [
        "5 problems - http://box/runs/one",
        "  error: Problem 2 began at step 2.",
        "  error: Problem 4 began at step 4.",
        "  warning: Problem 0 began at step 0.",
        "  and 2 more",
    ]


def test_the_end_of_a_crashed_run_says_where_it_crashed_with_the_link(terminal: Terminal, lines: list[str]) -> None:
    terminal.crash = "The training crashed in step 57 in embedding, at crash.py:17: IndexError: out of range"
    terminal.sum_up([an_incident(1, "info")])
    terminal.sum_up([])
    assert lines == [f"{terminal.crash} - http://box/runs/one"]


def test_a_run_without_problems_ends_silently(terminal: Terminal, lines: list[str]) -> None:
    terminal.sum_up([])
    terminal.sum_up([an_incident(1, "info"), an_incident(2, muted=True)])
    assert lines == []


def test_the_first_rank_of_a_machine_names_the_page_of_all_ranks() -> None:
    store = Store(20_000_000)
    said = {}
    for rank in (0, 1):
        place = Place(job="j0b", rank=rank, world=2, local_rank=rank)
        run = new_run(Settings.of({}, name="ranks"), {}, place)
        delivery = Delivery(run, StoreSink(store), store, "thread", f"http://box/runs/{run.id}")
        assert delivery.page == "http://box/runs/ranks-j0b"
        said[rank] = delivery.leads_terminal
    assert said == {0: True, 1: False}


def test_a_training_says_when_an_error_begins_and_what_its_problems_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    said = ""
    with served() as server:
        torch.manual_seed(0)  # by chance, all four units are dead in one of 15 such networks
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with hookcore.watch(model, server=server.url, budget=None) as watcher:
            for step in range(20):
                optimizer.zero_grad()
                inputs = torch.full((2, 4), float("nan") if step == 12 else 1.0)
                model(inputs).sum().backward()
                if step != 12:
                    optimizer.step()
            watcher.flush()
            wait_for(lambda: parts_of(watcher).callbacks.newest, "the incident")
        said = capsys.readouterr().err
    page = f"hookcore: {server.url}/runs/{run_id_of(watcher)}"
    first, *lines = said.splitlines()
    assert first == page
    begun = [line for line in lines if "/incident?id=" in line]
    assert begun[0].startswith("hookcore: NaN")
    assert len(set(begun)) == len(begun)
    end = next(place for place, line in enumerate(lines) if re.match(r"hookcore: \d problems? - http", line))
    assert end == len(begun)
    assert lines[end + 1].startswith("hookcore:   error: NaN")


def test_a_run_without_a_page_says_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hookcore.watch(model, server=None) as watcher:
        model(torch.full((2, 4), float("nan"))).sum().backward()
        optimizer.step()
        watcher.flush()
        assert threads_named("hookcore-incidents") == []
    assert capsys.readouterr().err == ""
    assert caplog.records == []
