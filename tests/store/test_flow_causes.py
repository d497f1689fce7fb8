"""The cause that an incident names if the data flow is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hookcore
from hookcore.delivery.archive import load_into, read_archive
from hookcore.findings import findings_of
from hookcore.records import Kind, Tap
from hookcore.records.flow import Flow, FlowCall
from hookcore.store import Store
from hookcore.store.incidents import Incident
from tests.archive_world import STORE_BYTES, keep, kept_in
from tests.build import frame, stats_of_magnitudes
from tests.flow_world import Mask
from tests.lanes import examples

Fed = dict[str, tuple[str, ...]]  # the modules that feed each module, in the order in which they return
Case = tuple[Flow, list[str], list[set[str]], bool]
FEW = settings(max_examples=examples(150), deadline=None)


def flow_of(fed: Fed, returns: Fed | None = None, step: int = 0, guessed: tuple[str, ...] = ()) -> Flow:
    places = {name: place for place, name in enumerate(fed)}
    calls = (
        FlowCall(
            name,
            fed_by=tuple(places[each] for each in sources),
            returns=tuple(places[each] for each in (returns or {}).get(name, ())),
            how="order" if name in guessed else "graph",
        )
        for name, sources in fed.items()
    )
    return Flow(step, tuple(calls))


def spoil(
    flow: Flow | None, names: list[str], bad: set[str], kind: Kind = "output", captured: set[str] | None = None
) -> Incident:
    """Return the incident of a step in which these modules' tensors are NaN. Their taps are numbered by `names`."""
    store = Store(2**20)
    shown = [name for name in names if captured is None or name in captured]
    for step in range(3):
        rms = [math.nan if step == 1 and name in bad else 1.0 for name in shown]
        new = tuple(Tap(name, kind) for name in shown) if step == 0 else ()
        store.append(frame(step, stats_of_magnitudes(rms, "rms"), new_taps=new, flow=None if step else flow))
    (incident,) = store.incidents()
    return incident


CHAIN: Fed = {"late": (), "a": ("late",), "b": ("a",)}
FIRST_SEEN = ["a", "b", "late"]  # the first module was added later
BRANCHES: Fed = {"stem": (), "right": ("stem",), "left": ("stem",), "head": ("left", "right")}


def test_the_module_that_runs_first_leads_even_if_it_was_seen_last() -> None:
    assert spoil(None, FIRST_SEEN, {"late", "a", "b"}).culprit.tap.module == "a"
    incident = spoil(flow_of(CHAIN), FIRST_SEEN, {"late", "a", "b"})
    assert incident.culprit.tap.module == "late"
    assert "No other module feeds it." in incident.sentence
    assert [link.tap.module for link in incident.chain] == ["a", "b"]


def test_a_gradient_with_a_finite_source_is_named() -> None:
    assert spoil(None, FIRST_SEEN, {"late", "a"}, "output_grad").culprit.tap.module == "late"
    incident = spoil(flow_of(CHAIN), FIRST_SEEN, {"late", "a"}, "output_grad")
    assert incident.culprit.tap.module == "a"
    assert "It was computed from a finite gradient: the activation gradient of b." in incident.sentence
    from_the_loss = spoil(flow_of(CHAIN), FIRST_SEEN, {"late", "a", "b"}, "output_grad")
    assert from_the_loss.culprit.tap.module == "b"
    assert "It came directly from the loss." in from_the_loss.sentence


def test_a_branch_that_runs_later_is_not_blamed_on_the_first() -> None:
    flow = flow_of(BRANCHES)
    incident = spoil(flow, ["stem", "left", "right", "head"], {"left", "right", "head"})
    assert incident.culprit.tap.module == "right"  # which returned first
    assert "Its input was finite: the activation of stem." in incident.sentence
    assert "Also affected in the same step, but not through it: left." in incident.sentence
    alone = spoil(flow, ["stem", "right", "left", "head"], {"left", "head"})
    assert alone.culprit.tap.module == "left"
    assert "not through it" not in alone.sentence


def test_a_container_is_never_blamed_for_its_child() -> None:
    fed: Fed = {"stem": (), "block.f": ("stem",), "block": ("stem", "block.f"), "seq.a": ("block",), "seq": (), "": ()}
    flow = flow_of(fed, {"seq": ("seq.a",), "": ("seq.a",)})
    names = ["", "seq", "block", "stem", "block.f", "seq.a"]  # in a meaningless order
    assert spoil(flow, names, {"block.f", "block", "seq.a", "seq", ""}).culprit.tap.module == "block.f"
    assert spoil(flow, names, {"seq.a", "seq", ""}).culprit.tap.module == "seq.a"
    assert spoil(flow, names, {"block", "seq.a", "seq", ""}).culprit.tap.module == "block"  # its own sum
    everything = {"", "seq", "seq.a", "block", "block.f", "stem"}
    assert spoil(flow, names, everything, "output_grad").culprit.tap.module == "seq.a"
    assert spoil(flow, names, {"block.f", "stem"}, "output_grad").culprit.tap.module == "block.f"


def test_uncaptured_tensors_are_mentioned() -> None:
    fed: Fed = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}
    incident = spoil(flow_of(fed), list(fed), {"c", "d"}, captured={"a", "c", "d"})
    assert incident.culprit.tap.module == "c"
    assert "Its input was finite: the activation of a." in incident.sentence
    assert "Not captured among the modules that feed it: b." in incident.sentence
    through = spoil(flow_of(fed), ["d", "c", "a"], {"a", "c", "d"})
    assert through.culprit.tap.module == "a"
    guessed = spoil(flow_of(fed, guessed=("c",)), list(fed), {"c", "d"})
    assert guessed.culprit.tap.module == "c"
    assert "Its inputs are unknown." in guessed.sentence


def test_a_captured_container_stands_for_the_child_whose_output_it_returns() -> None:
    fed: Fed = {"one.a": (), "one": (), "two.a": ("one.a",), "two": ()}
    flow = flow_of(fed, {"one": ("one.a",), "two": ("two.a",)})
    assert spoil(flow, ["two", "one"], {"one", "two"}, captured={"one", "two"}).culprit.tap.module == "one"
    both = spoil(flow, ["two", "one"], {"one", "two"}, "output_grad", captured={"one", "two"})
    assert both.culprit.tap.module == "two"


def test_the_structure_of_the_step_is_used_if_there_are_several() -> None:
    store = Store(2**20)
    names = ("b", "a", "c")
    one, other = flow_of({"b": (), "a": ("b",)}), flow_of({"a": (), "c": ("a",), "b": ("c",)}, step=1)
    new = tuple(Tap(name, "output") for name in names)
    store.append(frame(0, stats_of_magnitudes([1.0, 1.0, 1.0], "rms"), new_taps=new, flow=one))
    store.append(frame(1, stats_of_magnitudes([1.0, 1.0, 1.0], "rms"), flow=other))
    store.append(frame(2, stats_of_magnitudes([math.nan, math.nan], "rms")))
    store.append(frame(3, stats_of_magnitudes([1.0, 1.0, 1.0], "rms")))
    store.append(frame(4, stats_of_magnitudes([math.nan, math.nan, 1.0], "rms")))
    assert [each.culprit.tap.module for each in store.incidents()] == ["b", "a"]


def test_a_module_added_during_training_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.late = (nn.Linear(4, 4) for _ in range(4))
            self.has_late = self.spoils = False

        def forward(self, x: Tensor) -> Tensor:
            if self.has_late:
                x = self.late(x * math.nan if self.spoils else x)
            return self.c(self.a(x) + self.b(x))  # type: ignore[no-any-return]

    model = Net()
    watcher = hookcore.watch(model, server=None, budget=None)
    for step in range(12):
        model.has_late, model.spoils = step >= 4, step == 9
        model(torch.randn(2, 4)).sum().backward()
        watcher.step()
        watcher.flush()
    watcher.close()
    assert watcher.store is not None
    (incident, _) = watcher.store.incidents()  # the other one belongs to the loss
    assert (incident.culprit.tap, incident.first_step) == (Tap("late", "output"), 9)


def test_any_of_several_calls_measured_together_may_have_been_first() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, bad: int) -> Tensor:
            for call in range(12):
                x = x + self.b(self.a(x) * (math.nan if call == bad else 1.0))
            return x

    told: dict[int, Incident] = {}
    for bad in (3, 10):
        model = Net()
        with hookcore.watch(model, server=None, budget=None, calls=8) as watcher:
            for step in range(6):
                model(torch.randn(2, 4), bad if step == 4 else -1).sum().backward()
                watcher.step()
            watcher.flush()
            (told[bad], _) = watcher.store.incidents()  # the other one belongs to the loss
    assert told[3].culprit.tap == Tap("b", "output", call=3)
    assert "Its input was finite: the activation of a" in told[3].known
    assert "measured together" not in told[3].sentence
    assert told[10].culprit.tap == Tap("a", "output", call=7)
    assert "Calls from number 8 on are measured together. In them, b was non-finite, too" in told[10].sentence


def test_a_mask_is_not_called_finite() -> None:
    class Scores(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, bad: bool) -> Tensor:
            return x @ x.mT * (math.nan if bad else 1.0) + mask

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.mask, self.scores = nn.Linear(4, 4), Mask(), Scores()

        def forward(self, x: Tensor, bad: bool) -> Tensor:
            x = self.a(x)
            scores: Tensor = self.scores(x, self.mask(x), bad)
            return scores.softmax(-1) @ x

    model = Net()
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(6):
            model(torch.randn(2, 5, 4), step == 4).pow(2).sum().backward()
            watcher.step()
        watcher.flush()
        (incident, _) = watcher.store.incidents()  # the other one belongs to the loss
    assert incident.culprit.tap.module == "scores"
    assert "Its input was finite: the activation of a." in incident.sentence
    assert "Its input from mask has infinities that look like a mask." in incident.sentence


# --- Magnitudes -------------------------------------------------------------------------------------------------------


def grown(flow: Flow | None, names: list[str], bad: set[str], kind: Kind = "output") -> tuple[str, int]:
    """Return the culprit of an explosion in these modules, and the number of others. Taps are numbered by `names`."""
    store = Store(2**22)
    for step in range(80):
        rms = [1e6 if step >= 60 and name in bad else 1.0 for name in names]
        new = tuple(Tap(name, kind) for name in names) if step == 0 else ()
        stats = stats_of_magnitudes(rms, "rms", "max")
        store.append(frame(step, stats, new_taps=new, flow=None if step else flow, scalars={"loss": 1.0}))
    (found,) = [each for each in findings_of(store) if each.rule == "exploding"]
    assert found.since_step == 60
    return found.module, found.downstream


def test_an_explosion_is_blamed_on_the_tensor_that_no_other_exploding_one_feeds() -> None:
    assert grown(None, FIRST_SEEN, {"a", "b", "late"}) == ("a", 2)
    assert grown(flow_of(CHAIN), FIRST_SEEN, {"a", "b", "late"}) == ("late", 2)
    assert grown(flow_of(CHAIN), FIRST_SEEN, {"a", "b"}) == ("a", 1)
    assert grown(flow_of(BRANCHES), ["head", "left", "right", "stem"], {"head", "left"}) == ("left", 1)


@pytest.mark.parametrize("kind", ["output_grad", "param_grad"])
def test_a_gradient_that_explodes_is_blamed_in_the_order_of_the_backward_pass(kind: Kind) -> None:
    flow = flow_of(CHAIN)
    assert grown(None, FIRST_SEEN, {"a", "b", "late"}, kind) == ("late", 2)
    assert grown(flow, FIRST_SEEN, {"a", "b", "late"}, kind) == ("b", 2)
    assert grown(flow, FIRST_SEEN, {"a", "late"}, kind) == ("a", 1)


@settings(FEW, max_examples=examples(40))  # of eighty steps each
@given(st.data())
def test_the_culprit_of_an_explosion_has_only_normal_sources(data: st.DataObject) -> None:
    names = [f"m{number}" for number in range(data.draw(st.integers(2, 6)))]
    fed: Fed = {
        name: tuple(data.draw(st.sets(st.sampled_from(names[:place])))) if place else ()
        for place, name in enumerate(names)
    }
    start = data.draw(st.sampled_from(names))
    reached = {start}
    for name in names:  # what it feeds grows, too
        reached |= {name} if reached & set(fed[name]) else set()
    seen = data.draw(st.permutations(names))
    assert grown(flow_of(fed), list(seen), reached) == (start, len(reached) - 1)


# --- In general -------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return a flow without containers, the taps in any order, and which modules are bad in each step."""
    many = draw(st.integers(2, 7))
    names = [f"m{place}" for place in range(many)]
    sources = [draw(st.sets(st.sampled_from(names[:place]))) if place else set() for place in range(many)]
    flow = flow_of({name: tuple(sorted(each)) for name, each in zip(names, sources, strict=True)})
    order = draw(st.permutations(names))
    bad = draw(st.lists(st.sets(st.sampled_from(names)), min_size=1, max_size=6))
    return flow, list(order), bad, draw(st.booleans())


def frames_of(flow: Flow, order: list[str], bad: list[set[str]], kind: Kind) -> list[Any]:
    made = []
    for step, each in enumerate(bad):
        rms = [math.nan if name in each else 1.0 for name in order]
        new = tuple(Tap(name, kind) for name in order) if step == 0 else ()
        made.append(frame(step, stats_of_magnitudes(rms, "rms"), new_taps=new, flow=flow if step == 0 else None))
    return made


@FEW
@given(cases())
def test_the_culprit_is_the_first_tensor_with_only_finite_sources(
    case: Case,
) -> None:
    flow, order, bad, backward = case
    store = Store(2**20)
    for each in frames_of(flow, order, bad, "output_grad" if backward else "output"):
        store.append(each)
    feeds = [{at for at, call in enumerate(flow.calls) if place in call.fed_by} for place in range(len(flow.calls))]
    for incident in store.incidents():
        first = bad[incident.first_step]
        places = [place for place, call in enumerate(flow.calls) if call.module in first]
        before = feeds if backward else [set(call.fed_by) for call in flow.calls]
        alone = [place for place in places if not before[place] & set(places)]
        expected = max(alone) if backward else min(alone)
        assert incident.culprit.tap.module == flow.calls[expected].module


@FEW
@given(cases(), st.lists(st.booleans(), min_size=6, max_size=6))
def test_answers_do_not_depend_on_the_time_of_the_query(case: Case, asks: list[bool]) -> None:
    flow, order, bad, backward = case
    frames = frames_of(flow, order, bad, "output_grad" if backward else "output")
    asked, silent = Store(2**20), Store(2**20)
    told: dict[str, tuple[Any, str]] = {}
    for each, ask in zip(frames, asks, strict=False):
        asked.append(each)
        silent.append(each)
        for incident in asked.incidents() if ask else ():
            said = incident.culprit, incident.known
            assert told.setdefault(incident.id, said) == said
    assert {each.id: (each.culprit, each.known) for each in silent.incidents()}.items() >= told.items()


@pytest.mark.parametrize("kind", ["output", "output_grad"])
def test_a_run_that_is_read_again_has_the_same_causes(tmp_path: Path, kind: Kind) -> None:
    sink, store = keep(tmp_path)
    for each in frames_of(flow_of(CHAIN), FIRST_SEEN, [set(), {"late", "a"}, set()], kind):
        sink.send(each)
    sink.close()
    again = Store(STORE_BYTES)
    load_into(again, read_archive(kept_in(tmp_path)))
    assert again.flows() == store.flows()
    ((one,), (other,)) = store.incidents(), again.incidents()
    assert (one.culprit, one.sentence) == (other.culprit, other.sentence)
    assert one.known
