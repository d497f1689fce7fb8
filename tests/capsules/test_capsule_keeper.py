"""A watch automatically saves the step that became non-finite, and changes nothing in the training."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore.capsules import CapsuleError, Replay, as_text, read_about, read_frames, record, replay
from hookcore.capsules import keeper as keeper_module
from hookcore.delivery.dashboard import capsules as folder_module
from hookcore.records import Tap
from hookcore_app.runs.alerts import Explainer
from tests.build import frame as make_frame
from tests.build import stats_of
from tests.capsule_files import capsules_of
from tests.guilty import BAD, Net, Standardize, batches, events_of, guilty
from tests.harness import digest, random_state, seed_all
from tests.inside import module_of, run_id_of
from tests.warm import python

CONTENT = module_of("RecentFrames", "capsules")


class Parts(nn.Module):
    """Like a Lightning module: the training calls its parts, but never its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleDict({"encoder": nn.Linear(4, 8), "head": nn.Sequential(Standardize(), nn.Linear(8, 2))})

    def loss(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.nets["encoder"](x) * (x.sum() != 0)
        result: Tensor = self.nets["head"](hidden).pow(2).mean()
        return result


def train(model: Net, watcher: hookcore.Watcher | None, log: Callable[[Any], None] = lambda _: None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, mask in batches():
        optimizer.zero_grad()
        loss = model(x, mask=mask)["loss"]
        loss.backward()
        optimizer.step()
        log(loss.detach())


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, "capsule": "error", **settings})


def only_replay(watcher: hookcore.Watcher) -> Replay:
    (path,) = capsules_of(watcher)
    return replay(path)


def test_the_step_that_became_non_finite_is_saved_and_replayed_to_the_bit() -> None:
    seed_all()
    model = Net()
    with watch(model) as watcher:
        train(model, watcher)
        (event,) = events_of(watcher, "capsule")
        found = only_replay(watcher)
        assert not watcher.errors
    assert event.step == found.about["step"] == BAD
    assert "activation of standardize" in found.about["reason"]
    assert found.exact, found.differences
    assert found.about["weights"] == "before the update"
    assert guilty(found)
    assert "activation loss" in found.bad_results


def test_nothing_changes_in_the_training() -> None:
    def outcome(watched: bool) -> tuple[str, str, list[str]]:
        seed_all()
        model, losses = Net(), list[str]()
        watcher = watch(model) if watched else None
        train(model, watcher, lambda loss: losses.append(digest(loss)))
        if watcher is not None:
            assert len(capsules_of(watcher)) == 1
            watcher.close()
        return digest(model.state_dict()), random_state(), losses

    assert outcome(watched=True) == outcome(watched=False)


@pytest.mark.parametrize("bad", range(4))
def test_the_bad_micro_batch_of_four_is_found(bad: int) -> None:
    seed_all()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for step in range(4):
            for part, (x, mask) in enumerate(batches(bad if step == 2 else -1, steps=4)):
                if (step, part) == (2, bad):
                    x[:] = 7.0  # in place, but before the call, so it doesn't change the kept batch
                model(x, mask=mask)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        found = only_replay(watcher)
    assert guilty(found)
    assert found.exact, found.differences
    assert float(found.about["step"]) == 2


def test_parts_that_a_framework_calls_are_models() -> None:
    seed_all()
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for step in range(8):
            x = torch.zeros(16, 4) if step == BAD else torch.randn(16, 4)
            optimizer.zero_grad()
            model.loss(x).backward()
            optimizer.step()
        found = only_replay(watcher)
    assert found.about["model"].endswith("Sequential")
    assert guilty(found)


def test_a_bad_gradient_alone_is_found() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, bad: bool) -> Tensor:
            result: Tensor = self.layer(x)
            return (result - result).square().sum().sqrt() if bad else result.sum()  # guilty

    Root.__qualname__ = "_Root"
    globals()["_Root"] = Root  # so that it can be pickled
    model = Root()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, kinds="param_grad") as watcher:
        for step in range(8):
            optimizer.zero_grad()
            model(torch.randn(2, 4), step == BAD).backward()
            optimizer.step()
        found = only_replay(watcher)
    assert found.about["reason"].endswith("found at the end of a backward pass")
    assert found.culprit is not None
    assert found.culprit.phase == "backward"
    assert guilty(found)
    assert found.exact, found.differences


def train_until_it_raises(model: Net, watcher: hookcore.Watcher, steps: int, after: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watcher:
        for step in range(steps):
            wide = 8 if after or step < steps - 1 else 5
            model(torch.randn(16, 4), mask=torch.ones(16, wide))["loss"].backward()
            optimizer.step()
        raise RuntimeError("between two steps")


def test_an_exception_saves_the_running_step() -> None:
    seed_all()
    model = Net()
    watcher = watch(model, capsule="exception")
    with pytest.raises(RuntimeError, match="between two steps"):
        train_until_it_raises(model, watcher, 2, after=True)
    assert not capsules_of(watcher)
    assert "called no model" in events_of(watcher, "capsule-missed")[0].message
    watcher = watch(model, capsule="exception")
    with pytest.raises(RuntimeError, match="must match"):
        train_until_it_raises(model, watcher, 4, after=False)
    found = only_replay(watcher)
    assert found.about["step"] == 3
    assert found.about["reason"].startswith("exception: RuntimeError")
    assert "RuntimeError" in found.error


def test_an_interruption_saves_nothing() -> None:
    model = Net()
    watcher = watch(model)

    def interrupted() -> None:
        with watcher:
            model(torch.randn(16, 4), mask=torch.ones(16, 8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not capsules_of(watcher)
    assert not events_of(watcher, "capsule-missed")


def test_a_requested_step_is_saved_even_if_nothing_is_wrong_or_armed() -> None:
    seed_all()
    model = Net()
    with watch(model, capsule="never") as watcher:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step, (x, mask) in enumerate(batches(bad=-1)):
            optimizer.zero_grad()
            model(x, mask=mask)["loss"].backward()
            optimizer.step()
            if step == 2:
                watcher.capsule()
        found = only_replay(watcher)
    assert found.about["step"] == 3
    assert found.culprit is None
    assert found.exact, found.differences


def test_a_lasting_nan_is_saved_once_and_at_most_three_steps_in_a_run() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 8), Standardize())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as watcher:
        for step in range(24):
            for parameter in model.parameters():
                parameter.grad = None
            model(torch.randn(16, 4) if step % 4 else torch.full((16, 4), torch.inf)).sum().backward()
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        assert len(capsules_of(watcher)) == keeper_module.MAX_WRITTEN


def test_a_scaler_searching_for_its_scale_saves_no_step() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watch(model) as watcher:
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 4) * 100).pow(2).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        watcher.flush()
        # The first pass comes before the scaler is known, so only its overflow may be saved.
    assert len(capsules_of(watcher)) <= 1


def test_a_step_that_cannot_be_saved_is_reported() -> None:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0

    model = nn.Sequential(nn.Linear(4, 4), Local())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        (event,) = events_of(watcher, "capsule-missed")
        assert "Local" in event.message
        assert not capsules_of(watcher)
        assert not list(folder_module.folder_of(run_id_of(watcher)).iterdir())
    model = nn.Sequential(nn.Linear(4, 4), Standardize())
    with watch(model, capsule_size="10B") as watcher:
        model(torch.zeros(4, 4) * torch.nan).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        (event,) = events_of(watcher, "capsule-missed")
    assert "capsule_size=10" in event.message


def test_large_outputs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "HELD_BYTES", 64)
    model = nn.Sequential(nn.Linear(2, 4), Standardize(), nn.Linear(4, 64))
    with watch(model) as watcher:
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        model(torch.zeros(8, 2)).sum().backward()
        found = only_replay(watcher)
    assert guilty(found)  # of the forward pass
    assert any(each.startswith("not kept: the activations") for each in found.differences)


def test_a_batch_that_is_changed_in_place_is_reported() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        watcher.capsule()
        x = torch.randn(2, 4)
        output = model(x)
        x.zero_()  # a loader that reuses its buffer
        output.sum().backward()
        optimizer.step()
        found = only_replay(watcher)
    assert found.about["changed"] == ["argument 0"]
    assert not found.exact


def test_between_captured_steps_no_batch_and_no_model_is_kept_alive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        graphs = []
        batch = torch.randn(8, 4)
        kept = weakref.ref(batch)
        loss = model(batch).sum()
        graphs.append(loss)  # a training that keeps its losses keeps their graphs, but not the batch of the capsule
        loss.backward()
        optimizer.step()
        del batch, loss
        graphs[0] = graphs[0].detach()
        assert watcher.flush()  # the recorder's thread may be describing the model just now
        gc.collect()
        assert kept() is None
        gone = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert gone() is None


def test_a_bad_batch_between_two_alternating_models_is_found() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), Standardize())

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return result

    Checkpointed.__qualname__ = "_Checkpointed"
    globals()["_Checkpointed"] = Checkpointed
    seed_all()
    generator, judge = nn.Linear(2, 4), Checkpointed()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, judge)]
    with hookcore.watch(server=None, budget=None, capsule="error") as watcher:
        for step in range(12):
            for optimizer in optimizers:
                optimizer.zero_grad()
                fake = generator(torch.randn(8, 2))
                if step == BAD:
                    fake = fake * torch.nan
                judge(fake).sum().backward()
                optimizer.step()
        found = [replay(each) for each in capsules_of(watcher)]
    assert found
    assert found[0].about["model"].endswith("_Checkpointed")
    assert found[0].culprit is not None
    assert found[0].culprit.origin == "given"  # the batch was already bad
    assert "argument" in found[0].culprit.operator


def test_the_oldest_runs_are_dropped_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_RUNS", 2)
    seen = []
    for _ in range(4):
        model = nn.Linear(4, 4)
        with watch(model) as watcher:
            watcher.capsule()
            model(torch.randn(2, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            seen.append((capsules_of(watcher)[0], events_of(watcher, "capsule")[0].message))
    assert [path.exists() for path, _ in seen] == [False, False, True, True]
    assert "older runs were removed" in seen[-1][1]


def test_a_capsule_is_private_and_readable_without_running_it() -> None:
    model = nn.Linear(4, 4)
    with watch(model) as watcher:
        watcher.capsule()
        model(torch.randn(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        (path,) = capsules_of(watcher)
    assert path.parent.stat().st_mode & 0o077 == 0
    assert read_about(path)["step"] == 0


def test_weights_can_be_swapped_while_steps_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with watch(model) as watcher:
        model(torch.randn(4, 4)).sum().backward()
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.zeros(4, 4)))
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert not watcher.errors


def test_a_process_that_is_killed_while_it_writes_leaves_no_half_capsule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, torch, hookcore\n"
        "from torch import nn\n"
        "from hookcore.watcher import parts_of\n"
        "model = nn.Linear(4, 4)\n"
        "watcher = hookcore.watch(model, server=None, budget=None)\n"
        "print(parts_of(watcher).delivery.run.id, flush=True)\n"
        "watcher.capsule()\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "torch.optim.SGD(model.parameters(), lr=0.1).step()\n"
    )
    killed = subprocess.run([python(), str(script)], capture_output=True, text=True)
    assert killed.returncode == -9
    folder = folder_module.folder_of(killed.stdout.strip())
    (left,) = folder.iterdir()  # the hidden file that it had begun
    assert folder_module.saved(folder) == []
    dead, alive = left.name.split(".")[-3], str(os.getpid())
    written_now = left.with_name(left.name.replace(f".{dead}.", f".{alive}."))  # apparently by this process
    elsewhere = left.with_name(left.name.replace("step-000000000", "step-000000001"))  # its lock is held
    written_now.write_bytes(b"")
    with elsewhere.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        model = nn.Linear(4, 4)
        with watch(model) as watcher:
            watcher.capsule()
            model(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            (event,) = events_of(watcher, "capsule")
        assert sorted(folder.iterdir()) == sorted((written_now, elsewhere))
        assert "Removed 1 unfinished file of killed processes." in event.message
    Explainer()  # as a starting server does
    assert "removed 1 unfinished capsule files that killed processes left" in caplog.text
    assert list(folder.iterdir()) == [written_now]


def test_a_capsule_has_the_numbers_of_the_steps_before_it() -> None:
    seed_all(0)
    model = Net()
    with hookcore.watch(model, server=None, capsule="error", budget=None) as watcher:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step, (x, mask) in enumerate(batches(70, 72)):
            watcher.flush()
            optimizer.zero_grad()
            loss = model(x, mask=mask)["loss"]
            loss.backward()
            watcher.log(loss=float(loss.detach()), even=step % 2 == 0)
            optimizer.step()
        path = capsules_of(watcher)[0]
        store = read_frames(path)
        assert read_about(path)["frames"] == list(range(20, 70))
        assert store.steps().count == 50
        assert [tap.label for tap in store.taps().taps] == [tap.label for tap in watcher.store.taps().taps]
        for tap in store.taps().taps:
            for stat in ("rms", "mean", "count", "nan"):
                mine, theirs = (each.series(tap, stat, 20, 69) for each in (store, watcher.store))
                assert mine.mean.tolist() == pytest.approx(theirs.mean.tolist(), rel=1e-12, nan_ok=True), (tap, stat)
        assert store.scalars("loss").mean.tolist() == watcher.store.scalars("loss", 20, 69).mean.tolist()
    assert "earlier steps in the capsule" in as_text(replay(path))


def test_the_steps_before_take_bounded_memory_and_nothing_once_no_more_is_saved() -> None:
    recent = CONTENT.RecentFrames()
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(4000))
    for step in range(80):
        recent.add(make_frame(step, stats_of(4000, 1.0), taps if step == 0 else ()))
    assert recent.nbytes <= CONTENT.MAX_BYTES
    assert recent.steps(79) == list(range(80 - len(recent.steps(79)), 80))
    assert 1 < len(recent.steps(79)) < CONTENT.MAX_STEPS
    recent.add(make_frame(80, stats_of(4001, 1.0), (Tap("late", "output"),)), keep=False)
    assert (recent.steps(79), recent.nbytes) == ([], 0)
    assert len(recent.taps) == 4001


def test_a_capsule_without_earlier_steps_says_so(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with record(model, tmp_path / "one.capsule", when="asked") as recording:
        model(torch.ones(1, 2))
        recording.write()
    with pytest.raises(CapsuleError, match="has no earlier steps"):
        read_frames(tmp_path / "one.capsule")
