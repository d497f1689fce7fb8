"""Planted failures of real trainings, solved by a client of MCP that sees nothing but the tools' answers.

It waits while the training runs, and then asks as an agent would: why, and about each further incident, or what
differs. It may call six times.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from benchmarks import planted
from benchmarks.diagnosis import FAULTY, NONFINITE, Case, train
from benchmarks.diagnosis.case import Training
from tests.mcp_client import Agent, over_http, over_stdio
from tests.serving import READ_TOKEN, TOKEN, Served, served

pytestmark = pytest.mark.slow
MOST_CALLS = 6
PATIENCE_S = 120.0
INCIDENT = re.compile(r"^(?:error|warning|note) (\S+?)((?:-\d+)+): .*\nculprit: (.*); began in (.*?);", re.MULTILINE)
OTHERS = re.compile(r"^- (?:error|warning) (\S+): ", re.MULTILINE)


@dataclass
class Solution:
    """What a client learned about a run."""

    causes: list[tuple[str, str, str]] = field(default_factory=list)  # rule, culprit, and when it began
    texts: list[str] = field(default_factory=list)

    def line(self, pattern: str) -> str:
        """Return the first line of the answers that matches, or nothing."""
        lines = (line for text in self.texts for line in text.splitlines())
        return next((line for line in lines if re.search(pattern, line)), "")


def solve(agent: Agent, name: str) -> Solution:
    """Wait until a run is over, and find out what went wrong in it."""
    found = Solution([], [agent.ask("wait", run=name, until="end", seconds=PATIENCE_S)])
    waiting = [None]
    seen: set[str | None] = set()
    while waiting and agent.calls < MOST_CALLS:
        incident = waiting.pop(0)
        text = agent.ask("why", run=name, **({} if incident is None else {"incident": incident}))
        assert not agent.is_error, text
        found.texts.append(text)
        told = INCIDENT.search(text)
        if told:
            found.causes.append((told[1], told[3], told[4]))
            seen.add(told[1] + told[2])
        waiting += [each for each in OTHERS.findall(text) if each not in seen]
        seen |= set(waiting)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(read_token=READ_TOKEN) as made:
        yield made


@pytest.fixture
def agent(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)  # for the trainings
    with over_http(server.url, READ_TOKEN) as made:
        yield made


def solved_live(agent: Agent, name: str, begin: Callable[[threading.Event], Any]) -> tuple[Solution, Any]:
    """Train in this thread, and let the client begin once the training has."""
    begun = threading.Event()

    def ask() -> Solution:
        assert begun.wait(PATIENCE_S)
        return solve(agent, name)

    with ThreadPoolExecutor(1) as pool:
        solution = pool.submit(ask)
        try:
            truth = begin(begun)
        finally:
            begun.set()
        return solution.result(PATIENCE_S), truth


def announcing(case: Case, begun: threading.Event) -> Case:
    """Return a case that says when its first step is over, so that its run is on the server."""

    def make() -> Training:
        model, step = case.make()

        def say(number: int) -> dict[str, Any]:
            logged = step(number)
            if number == 20:
                begun.set()
            return logged

        return model, say

    return replace(case, make=make)


CASES = {
    "NaN in a weight": (NONFINITE, r"2 (param|output)"),
    "backward once: sqrt at zero": (NONFINITE, r"[12] output_grad"),
    "dead relu from step 0": (FAULTY, "3 output"),
    "sigmoid, 20 layers": (FAULTY, "0 "),
    "one weight grows": (FAULTY, "2 output"),
    "layer forgotten by the optimizer": (FAULTY, "2 param_grad"),
    "body detached": (FAULTY, "body.6 "),
    "rate far too high from the start": (FAULTY, ""),
}
EACH_TIME = {"layer forgotten by the optimizer"}
OVER_STDIO = {"NaN in a weight", "one weight grows"}


@pytest.mark.parametrize(
    "name", [name if name in EACH_TIME else pytest.param(name, marks=pytest.mark.all) for name in CASES]
)
def test_a_client_finds_the_planted_cause_with_tool_answers_only(
    name: str, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    cases, culprit = CASES[name]
    case = cases[name]
    by_process = name in OVER_STDIO
    asking = over_stdio(server.url, HOOKCORE_TOKEN=READ_TOKEN) if by_process else over_http(server.url, READ_TOKEN)
    with asking as agent:
        found, _ = solved_live(
            agent, name, lambda begun: train(announcing(case, begun), server=server.url, name=name, explain="never")
        )
    assert agent.calls <= MOST_CALLS
    right = [cause for cause in found.causes if cause[0] in case.expected and re.match(culprit, cause[1])]
    assert right, found.texts
    if case.expected == ("nonfinite",):
        assert right[0][2] == f"step {case.at}"
    assert found.line("^try: ")


@pytest.mark.all
def test_a_client_finds_the_operator_and_the_line_that_made_a_nan(
    server: Served, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_EXPLAIN", "auto")
    truth = planted.nan(server.url)
    found = solve(agent, "nan")
    assert agent.calls <= MOST_CALLS
    assert found.causes[0] == ("nonfinite", f"{truth['module']} output", f"step {truth['step']}")
    assert re.search(r"operator: aten\.div\S* \(forward\), .* the first at \[17, 0\]", found.line("^operator: "))
    assert "sqrt()" in found.line("^source line: .*planted.py:")


def test_a_client_finds_the_error_and_the_line_of_a_crash(server: Served, agent: Agent) -> None:
    truth = planted.crash(server.url)
    found = solve(agent, "crash")
    assert agent.calls <= MOST_CALLS
    said = found.line("^error: ")
    assert f"The training crashed in step {truth['step']}" in said
    assert truth["error"] in said
    assert "planted.py:" in found.line("^source line: ")


@pytest.mark.all
def test_a_client_finds_the_step_and_the_layer_in_which_two_runs_part(server: Served, agent: Agent) -> None:
    truth = planted.twins(server.url)
    text = agent.ask("compare", run="twin-a", other="twin-b")
    assert agent.calls <= MOST_CALLS
    assert f"The runs first differ at step {truth['step']}, in the activation of {truth['module']}." in text


@pytest.mark.all
def test_a_client_finds_the_setting_that_made_one_of_two_runs_fail(server: Served, agent: Agent) -> None:
    truth = planted.rate(server.url)
    found = solve(agent, truth["high"])
    assert found.causes
    assert "No incident was found." in agent.ask("why", run="calm")
    text = agent.ask("compare", run="calm", other=truth["high"])
    assert agent.calls <= MOST_CALLS
    assert "setting lr: 0.1 and 10.0" in text
