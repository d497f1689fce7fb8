"""The Incident page as rendered by the server, and the evidence behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from hookcore.findings import RULES, rule_about
from hookcore.reading import StoreReader
from hookcore.reading.answers import Capsule, Explanation, Suspect
from hookcore.records import STATS, Kind, Tap
from hookcore.records.flow import Flow, FlowCall
from hookcore.store import Store
from hookcore.store.incidents import Evidence, Incident, Link, LoggedValue
from hookcore_app.pages.views.incident import default_stat, graph_of, rule_after, view_of
from tests.api_world import World, fill, open_run
from tests.build import frame, stats_of_magnitudes

TAPS = (Tap("b", "output"), Tap("b", "output_grad"), Tap("a", "output"), Tap("c", "output"))
STEPS = np.array([8, 9, 11, 12])


def _evidence() -> Evidence:
    """Return the evidence of four steps, for the culprit `b`, its gradient, and its neighbors. Step 10 is missing."""
    stats = np.full((len(STATS), len(STEPS), len(TAPS)), np.nan)
    values = np.arange(16.0).reshape(4, 4)
    for name in STATS:
        stats[STATS.index(name)] = {"count": 8.0, "nan": 0.0, "inf": 0.0}.get(name, values)
    stats[STATS.index("nan"), 2, 0] = 3
    stats[:, 2, 1] = np.nan  # the gradient wasn't captured at step 11
    logged = LoggedValue("loss", np.array([8, 9, 11]), np.array([1.0, 0.5, np.nan]))
    return Evidence((1, 3, 0, 2), TAPS, STEPS, stats, (logged,))


def _incident(**changes: object) -> Incident:
    chain = (Link(2, TAPS[3], 11), Link(3, TAPS[1], 12), Link(0, TAPS[2], 12))
    found = Incident("nonfinite", Link(1, TAPS[0], 11), float("nan"), 11, 12, None, 2, chain=chain, taps=5, modules=2)
    return replace(found, **{"previous": 9, "evidence": _evidence(), **changes})  # type: ignore[arg-type]


def test_each_tensor_has_its_place_its_first_step_and_its_values() -> None:
    view = view_of(_incident(), "rms", ended=False)
    places = [(row.tap.label, row.place, row.since) for row in view.rows]
    assert places == [
        ("b output", "culprit", 11),
        ("b output_grad", "same module", 12),
        ("a output", "before it", 12),
        ("c output", "next", 11),
    ]
    culprit, gradient, before, after = (row.onset for row in view.rows)
    assert culprit.before == 4.0
    assert np.isnan(culprit.at)  # not the rms of the remaining finite values
    assert (before.before, before.at, after.at) == (6.0, 10.0, 11.0)
    assert (gradient.was_seen, gradient.before) == (False, 5.0)
    assert view.before == 9


def test_counts_of_non_finite_values_are_shown() -> None:
    assert default_stat(_incident()) == "nan"
    assert default_stat(_incident(value=float("inf"))) == "rms"
    culprit = view_of(_incident(), "nan", ended=False).rows[0].onset
    assert (culprit.before, culprit.at) == (0.0, 3.0)


def test_a_tensor_with_infinities_but_no_nan_is_marked_infinite_and_not_nan() -> None:
    evidence = _evidence()
    evidence.stats[STATS.index("nan"), 2, 0] = 0
    evidence.stats[STATS.index("inf"), 2, 0] = 3
    culprit = view_of(_incident(evidence=evidence), "rms", ended=False).rows[0].onset
    assert (culprit.before, culprit.at) == (4.0, float("inf"))


def test_neighbors_in_the_backward_pass_come_in_its_order() -> None:
    taps = tuple(replace(tap, kind="output_grad") for tap in (TAPS[0], TAPS[2], TAPS[3]))
    evidence = Evidence((1, 0, 2), taps, STEPS, _evidence().stats[:, :, [0, 2, 3]])
    incident = replace(_incident(), culprit=Link(1, taps[0], 11), evidence=evidence)
    assert [row.place for row in view_of(incident, "rms", ended=False).rows] == ["culprit", "next", "before it"]


def test_the_causal_chain_is_shown_step_by_step() -> None:
    chain = view_of(_incident(), "rms", ended=False).chain
    assert [(each.step, each.later, len(each.links)) for each in chain] == [(11, 0, 1), (12, 1, 2)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "The 1 step right before was not captured"),
        ({"evidence": None}, "weren't kept: there was no room for them"),
        ({"evidence": None, "culprit": Link(-1, TAPS[0], 11)}, "weren't kept: the layer isn't known"),
        ({}, "2 more tensors followed"),
    ],
)
def test_unknown_facts_are_stated(changes: dict[str, object], words: str) -> None:
    unknown = view_of(replace(_incident(), **changes), "rms", ended=False).unknown  # type: ignore[arg-type]
    assert any(words in each for each in unknown), unknown


def test_a_fully_known_incident_lists_no_unknowns() -> None:
    assert view_of(_incident(previous=10, taps=3), "rms", ended=False).unknown == []


@pytest.mark.parametrize(
    ("changes", "ended", "words"),
    [
        ({}, False, "ongoing"),
        ({}, True, "until the end of the run"),
        ({"recovered": 13}, False, "over at step 13"),
        ({"rule": "spike", "short": True, "message": "jumped", "steps": 1}, False, "a single step"),
        ({"rule": "spike", "short": True, "message": "jumped", "steps": 3}, True, "3 single steps"),
    ],
)
def test_the_state_is_described_in_words(changes: dict[str, object], ended: bool, words: str) -> None:
    assert view_of(_incident(**changes), "rms", ended).state == words


def test_the_chart_has_room_for_future_steps() -> None:
    assert view_of(_incident(), "rms", ended=False).until == 61
    assert view_of(_incident(), "rms", ended=True).until == 12


def test_an_unknown_rule_is_titled_by_its_name() -> None:
    view = view_of(_incident(rule="my-own", message="too large"), "rms", ended=False)
    assert (view.rule, view.title) == (None, "My own")


def test_the_page_shows_the_incident_and_an_unknown_one_says_what_to_do() -> None:
    world = World()
    fill(open_run(world.runs, "run-1"))
    with world.client as client:
        page = client.get("/runs/run-1/problems/incident?id=nonfinite-9")
        assert page.status_code == 200
        assert re.search(r'<h1 id="about-title">.*NaN or infinity.*layers\.1', page.text, re.DOTALL)
        assert "the activation of layers.1" in page.text.replace("<wbr>", "")
        assert re.search(r"<dd>activation <span class=.mono.>past.1</span>, call 2</dd>", page.text)
        for part in ("about", "cause", "graph", "tensors", "chain"):
            alone = client.get(f"/runs/run-1/problems/incident?id=nonfinite-9&part={part}").text
            assert f'data-part="{part}"' in alone
            assert alone.count("data-part=") == 1
        odd = client.get("/runs/run-1/problems/incident?id=nonfinite-9&stat=nonsense")
        assert odd.status_code == 200
        missing = client.get("/runs/run-1/problems/incident?id=nonfinite-8", headers={"Accept": "text/html"})
        assert missing.status_code == 404
        assert "Problems page lists the others" in missing.text
        assert '<a class="button" href="runs/run-1/problems">Its problems</a>' in missing.text
        nameless = client.get("/runs/run-1/problems/incident", headers={"Accept": "text/html"})
        assert nameless.status_code == 422
        assert "This address lacks the id of a problem" in nameless.text
        assert '<a class="button" href="runs/run-1/problems">Its problems</a>' in nameless.text
        link = re.search(
            r'href="(runs/run-1/problems/incident\?id=nonfinite-9)"',
            client.get(
                "/runs/run-1/problems?name=nonfinite&event=nonfinite%3Alayers.1+output+%5Bpast.1%5D+call+2"
            ).text,
        )
        assert link is not None


@pytest.mark.parametrize(
    ("origin", "operator", "tries"),
    [
        ("operator", "aten.div.Tensor", ["add a small epsilon to the divisor, the logarithm, or the square root"]),
        ("operator", "aten.log_.default", ["add a small epsilon to the divisor, the logarithm, or the square root"]),
        ("operator", "aten.exp.default", ["use bfloat16, or a gradient scaler with float16; clip the gradients"]),
        ("given", "the batch", list(RULES["nonfinite"].tries)),
    ],
)
def test_the_advice_follows_from_the_cause_that_a_replay_found(
    origin: Literal["operator", "given"], operator: str, tries: list[str]
) -> None:
    suspect = Suspect(origin, operator, 3, "forward", "", (), (), None, (), 1)
    found = Explanation("found", suspect, (), (), 9, True, (), "")
    capsule = Capsule("a", 3, "", "", "before", 0.0, 0, "", "explained", "", found, "")
    advised = rule_after(RULES["nonfinite"], capsule)
    assert advised is not None
    assert list(advised.tries) == tries
    assert rule_after(RULES["nonfinite"], None) == RULES["nonfinite"]


def test_a_replay_that_found_nothing_leads_to_the_loss_and_its_targets() -> None:
    found, unlike = (Explanation("found nothing", None, (), (), 9, exact, (), "") for exact in (True, False))
    capsule = Capsule("a", 3, "", "", "before", 0.0, 0, "", "explained", "", found, "")
    advised = rule_after(RULES["nonfinite"], capsule)
    assert advised is not None
    assert any("computation of the loss" in each for each in advised.tries)
    assert any("the targets of that step" in each for each in advised.tries)
    assert not any("replay" in each for each in advised.tries)
    doubtful = Capsule("a", 3, "", "", "before", 0.0, 0, "", "explained", "", unlike, "")
    assert rule_after(RULES["nonfinite"], doubtful) == RULES["nonfinite"]


def test_a_loss_that_is_nan_is_not_told_to_lower_the_learning_rate() -> None:
    nan, high = rule_about("loss", math.nan), rule_about("loss", 1e9)
    assert nan is not None
    assert high is not None
    assert not any("learning rate" in each for each in nan.tries)
    assert "the layer that had NaN" in nan.tries[0]
    assert high.tries[0].startswith("divide the learning rate by 10")
    assert rule_about("own/mine", 1.0) is None


def test_an_incident_of_the_loss_blames_no_tensor() -> None:
    view = view_of(_incident(rule="loss", message="loss has been 9 since step 11", placed=False), "rms", ended=False)
    assert view.is_of_loss
    assert [(row.place, row.since) for row in view.rows][:2] == [("the model", None), ("same module", None)]
    assert [row.name for row in view.logged] == ["loss"]


def _flow(*fed_by: tuple[int, ...], step: int = 0) -> Flow:
    calls = (FlowCall(f"m{place}", fed_by=sources) for place, sources in enumerate(fed_by))
    return Flow(step, tuple(calls))


# m0 -> m1 -> m2 -> m3, and m1 -> m3 around m2; m4 is separate
FLOW = _flow((), (0,), (1,), (1, 2), ())


def _in_flow(kind: Kind = "output", culprit: int = 2, chain: tuple[tuple[int, int], ...] = ((3, 11),)) -> Incident:
    links = tuple(Link(place, Tap(f"m{place}", kind), step) for place, step in chain)
    return replace(_incident(), culprit=Link(culprit, Tap(f"m{culprit}", kind), 11), chain=links, taps=len(links))


def _reader(*flows: Flow, taps: Sequence[Tap] = ()) -> StoreReader:
    store = Store(2**20)
    for flow in flows:
        store.append(frame(flow.step, stats_of_magnitudes([], "rms"), flow=flow))
    store.announce(tuple(taps))
    return StoreReader(store)


def _states(incident: Incident, *flows: Flow, captured: tuple[int, ...] = (0, 1, 2, 3, 4)) -> dict[str, str]:
    taps = [Tap(f"m{place}", incident.culprit.tap.kind) for place in captured]
    graph = graph_of(incident, _reader(*flows, taps=taps))
    return {} if graph is None else {node.path: node.state for node in graph.nodes}


def test_the_graph_shows_what_feeds_the_culprit_and_what_followed() -> None:
    expected = {"m0": "fine", "m1": "fine", "m2": "culprit", "m3": "same"}
    assert _states(_in_flow(), FLOW) == expected
    assert _states(_in_flow(chain=((3, 14),)), FLOW) == {**expected, "m3": "later"}
    assert _states(_in_flow("param_grad"), FLOW) == expected
    graph = graph_of(_in_flow(), _reader(FLOW))
    assert graph is not None
    assert [node.path for node in sorted(graph.nodes, key=lambda node: node.x)] == ["m0", "m1", "m2", "m3"]
    assert len(graph.edges) == 4


def test_uncaptured_or_discarded_values_are_unknown_in_the_graph() -> None:
    assert _states(_in_flow(), FLOW, captured=(0, 2, 3))["m1"] == "unknown"
    assert _states(replace(_in_flow(), taps=9), FLOW)["m0"] == "unknown"


def test_the_graph_is_that_of_the_structure_in_the_first_step() -> None:
    later = _flow((), (0,), (0,), (2,), step=20)
    assert "m1" in _states(_in_flow(), FLOW, later)
    assert "m1" not in _states(replace(_in_flow(), first_step=25), FLOW, later)


def test_there_is_no_graph_without_a_flow_or_around_an_unconnected_module() -> None:
    assert graph_of(_in_flow(), _reader()) is None
    assert graph_of(_in_flow(culprit=4, chain=()), _reader(FLOW)) is None
    assert graph_of(replace(_in_flow(), culprit=Link(9, Tap("other", "output"), 11)), _reader(FLOW)) is None


def test_only_some_of_many_modules_are_drawn_and_the_others_are_counted() -> None:
    wide = _flow((), *((0,) for _ in range(12)))
    graph = graph_of(_in_flow(culprit=0, chain=()), _reader(wide))
    assert graph is not None
    assert (len(graph.nodes), graph.left_out) == (6, 7)
