"""What a replay measured of each layer travels in an event, and says where an incident began."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hookcore.records import STAT_COLUMN, Event, Tap
from hookcore.records.flow import MAX_LAYERS, MEASURED, REPLAYED, ReplayedTap, packed, unpacked
from hookcore.store import Store
from hookcore.store.incidents import Incident
from tests.build import append, frame, stats_of_magnitudes
from tests.inside import class_of
from tests.nonfinite_world import alarm

TAPS = (Tap("embed", "output"), Tap("norm", "output"), Tap("head", "output"), Tap("", "output"))


def layer(module: str, nan: int = 0, kind: str = "output", inf: int = 0) -> ReplayedTap:
    values = dict.fromkeys(MEASURED, 1.0) | {"nan": float(nan), "inf": float(inf)}
    return ReplayedTap(module, kind, "", 0, tuple(values[name] for name in MEASURED))


FORWARD = (layer("embed"), layer("norm", 3), layer("head", 2), layer("", 2))


def run_with(about: dict[str, object], layers: tuple[ReplayedTap, ...] = FORWARD) -> Incident:
    """Return the incident of a NaN at step 3 in a run that captures every eighth step, after its replay."""
    store = Store(2**22)
    for step in (0, 1):
        append(store, step, [1.0] * 4, TAPS if step == 0 else ())
    store.append(frame(3, stats_of_magnitudes([]), events=(alarm(3, 2),)))
    append(store, 8, [math.nan] * 4)
    facts = {"exact": True, "module": "norm", "phase": "forward", "operator": "aten.log", "where": "norm.py:14"}
    event = Event(3, 9.0, REPLAYED, "", about={**facts, "layers": packed(layers), **about})  # type: ignore[dict-item]
    store.append(frame(9, stats_of_magnitudes([]), events=(event,)))
    (incident,) = [each for each in store.incidents() if each.rule == "nonfinite"]
    return incident


def test_the_layer_that_the_operator_belongs_to_is_the_culprit() -> None:
    incident = run_with({})
    assert (incident.culprit_known, incident.source, incident.where) == (True, "replay", "norm.py:14")
    assert incident.culprit.tap == Tap("norm", "output")
    assert incident.culprit.number == 1
    assert [link.tap.module for link in incident.chain[:2]] == ["head", ""]
    assert math.isnan(incident.value)
    assert incident.evidence is not None
    assert [tap.module for tap in incident.evidence.taps] == ["norm", "embed", "head", ""]
    assert incident.evidence.stats[STAT_COLUMN["nan"], 2].tolist() == [3, 0, 2, 2]
    assert "from the replay" in incident.headline or "replay" in incident.headline


def test_its_values_stand_among_those_of_the_captured_steps_around_it() -> None:
    evidence = run_with({}).evidence
    assert evidence is not None
    assert evidence.steps.tolist() == [0, 1, 3, 8]
    assert evidence.numbers == (1, 0, 2, 3)
    assert np.isfinite(evidence.stats[STAT_COLUMN["rms"], :3]).all()
    assert evidence.stats[STAT_COLUMN["nan"], 3].min() > 0


def test_a_bad_batch_is_blamed_instead_of_the_first_layer_that_was_captured() -> None:
    store = Store(2**22)
    for step in range(3):
        append(store, step, [1.0] * 4, TAPS if step == 0 else ())
    store.append(frame(3, stats_of_magnitudes([math.nan] * 4), events=(alarm(3, 2),)))
    (captured,) = store.incidents()
    assert (captured.culprit_known, captured.culprit.tap) == (True, Tap("embed", "output"))
    layers = tuple(layer(tap.module, 4) for tap in TAPS)
    facts = {"exact": True, "module": "", "phase": "", "operator": "argument x", "model": "", "where": ""}
    event = Event(3, 9.0, REPLAYED, "", about={**facts, "layers": packed(layers)})
    store.append(frame(4, stats_of_magnitudes([math.nan] * 4), events=(event,)))
    (incident,) = store.incidents()
    assert (incident.culprit.tap, incident.source) == (Tap("", "input", "x"), "replay")
    assert Tap("embed", "output") in [link.tap for link in incident.chain]


def test_an_infinity_that_is_a_mask_is_not_blamed_for_the_operator_of_another_layer() -> None:
    incident = run_with({}, (layer("embed", inf=2), layer("norm", 3), layer("head", 2)))
    assert incident.culprit.tap.module == "norm"


def test_a_replay_that_may_differ_from_the_training_names_no_layer() -> None:
    incident = run_with({"exact": False})
    assert not incident.culprit_known


@pytest.mark.parametrize("text", ["", "[", "{}", "[[1]]", '[["a","weight","",0]]', 5, None])
def test_a_text_that_no_replay_wrote_names_no_layer(text: object) -> None:
    assert unpacked(text) == []
    assert not run_with({"layers": text}).culprit_known


def test_bad_weights_batches_and_losses_are_blamed_themselves() -> None:
    given = {"phase": "", "module": "", "where": ""}
    weight = run_with({**given, "operator": "weight norm.scale"})
    assert weight.culprit.tap == Tap("norm", "param", "scale")
    batch = run_with({**given, "operator": "argument 0"})
    assert batch.culprit.tap == Tap("", "input", "0")
    gradients = (layer("", 2, "output_grad"), layer("head", 2, "output_grad"))
    loss = run_with({**given, "operator": "activation gradient"}, gradients)
    assert loss.culprit.tap == Tap("", "output_grad")


def test_an_operator_of_the_backward_pass_is_blamed_on_its_module() -> None:
    backward = {"phase": "backward", "operator": "aten.div"}
    gradients = (layer("head", 0, "output_grad"), layer("norm", 0, "output_grad"), layer("embed", 4, "output_grad"))
    assert run_with(backward, gradients).culprit.tap == Tap("norm", "input_grad")
    inside = run_with({**backward, "module": ""}, gradients)
    assert inside.culprit.tap == Tap("embed", "output_grad")


def test_layers_survive_their_text_which_is_bounded() -> None:
    odd = ReplayedTap("a.b", "output_grad", "0", 2, (float("nan"), *map(float, range(9))))
    (back,) = unpacked(packed([odd]))
    assert (back.module, back.kind, back.index, back.call) == ("a.b", "output_grad", "0", 2)
    assert math.isnan(back.values[0])
    assert back.values[1:] == odd.values[1:]
    many = [layer("x" * 900, 1) for _ in range(500)]
    assert len(packed(many)) < 16_384
    assert 0 < len(unpacked(packed(many))) <= MAX_LAYERS


def test_without_a_request_a_main_script_is_run_for_its_definitions_only() -> None:
    source = b"""
import math
try:
    from fast import layer
except ImportError:
    layer = None
EPS = 1e-5
options = parse()
wandb.init()
class Net:
    pass
def main():
    train()
for step in range(10):
    main()
if __name__ == "__main__":
    main()
"""
    script = class_of("only_definitions", "capsules")(source)
    assert [type(each).__name__ for each in script.body] == ["Import", "Try", "Assign", "ClassDef", "FunctionDef"]
