"""Results of probes with one number per channel, in order, over time, wherever the run is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hookcore
from hookcore import probes
from hookcore.delivery.archive import load_into, read_archive
from hookcore.errors import PatternError
from hookcore.records import Command, Frame, Snapshot, Tap
from hookcore.store import Store
from hookcore.store.bounded import MAX_COLUMNS
from tests.api_world import World, make_frame
from tests.harness import digest, process_state, random_state, seed_all
from tests.inside import class_of, module_of, recorder_of

TAP = Tap("conv", "probe", "size")


def snapshot(step: int, values: Any, channels: int | None = None, tap: Tap = TAP) -> Snapshot:
    numbers = np.array(values, np.float32)
    whole = len(numbers) if channels is None else channels
    return Snapshot(tap, step, 0.0, "float32", (whole,), numbers, whole != len(numbers))


def store_with(*snapshots: Snapshot, max_bytes: int = 2**26) -> Store:
    store = Store(max_bytes)
    store.announce((TAP,))
    for each in snapshots:
        store.add_snapshot(each)
    return store


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.LazyLinear(2)
        self(torch.zeros(1, 1, 8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.act(self.conv(x)).flatten(1))


def train(model: nn.Module, steps: int, passes: int = 1) -> list[list[torch.Tensor]]:
    """Train, and return the outputs of the activation by step and pass."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen: list[list[torch.Tensor]] = []
    handle = model.get_submodule("act").register_forward_hook(
        lambda _module, _args, output: seen[-1].append(output.detach().double())
    )
    for _ in range(steps):
        seen.append([])
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(4, 1, 8, 8)).pow(2).mean().backward()
        optimizer.step()
    handle.remove()
    return seen


def of_channels(outputs: list[torch.Tensor], of: Any) -> np.ndarray[Any, Any]:
    """Return one number for each channel: the largest one of several outputs."""
    numbers = [[float(of(output[:, channel])) for channel in range(6)] for output in outputs]
    return np.asarray(np.max(numbers, axis=0))


@pytest.mark.parametrize("passes", [1, 3])
def test_every_channel_keeps_its_number_over_time(passes: int) -> None:
    seed_all()
    model = Net()
    with hookcore.watch(model, server=None, budget=None) as watcher:
        watcher.probe("size", probes.channel_rms, include="act", every=3)
        watcher.probe("dead", probes.channel_zeros, include="act", every=4)
        watcher.probe("one", torch.mean, include="act", every=1)
        watcher.probe("number", lambda tensor: 3, include="act", every=1)
        seen = train(model, 9, passes)
        watcher.flush()
        reader = watcher.reader()
        assert [tap.index for tap in reader.channel_taps().taps] == ["size", "dead"]
        found = reader.channels("act probe [size]")
        assert found.first_step.tolist() == found.last_step.tolist() == [0, 3, 6]
        assert (found.channels, found.channel.tolist()) == (6, list(range(6)))
        expected = [of_channels(seen[step], lambda x: x.pow(2).mean().sqrt()) for step in (0, 3, 6)]
        np.testing.assert_allclose(found.values, np.transpose(expected), rtol=1e-5)
        dead = reader.channels("act probe [dead]", first=4)
        assert dead.first_step.tolist() == [4, 8]
        expected = [of_channels(seen[step], lambda x: (x == 0).double().mean()) for step in (4, 8)]
        np.testing.assert_allclose(dead.values, np.transpose(expected), rtol=1e-6)
        assert not watcher.errors
        assert not watcher.store.snapshots()


def test_the_channels_of_the_last_step_are_sent_before_the_end() -> None:
    model = Net()
    with hookcore.watch(model, server=None, budget=None) as watcher:
        watcher.probe("size", probes.channel_rms, include="act", every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 1, 8, 8)).sum().backward()
        optimizer.step()
        model(torch.randn(2, 1, 8, 8)).sum().backward()
        store = watcher.store
    assert store.channels("act probe [size]").first_step.tolist() == [0, 1]


def test_columns_that_find_too_many_waiting_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("ChannelColumns"), "MAX_COLUMNS", 2)
    errors = class_of("ErrorLog")(SimpleNamespace(number=7))
    columns = class_of("ChannelColumns")(errors)
    for place in range(5):
        columns.note(Tap(f"act{place}", "probe", "size"), 7, 3, torch.ones(3))
    columns.end_step()
    [event] = errors.news()
    assert (event.name, event.step, event.count) == ("channels-dropped", 7, 3)
    assert event.message.startswith("3 columns of channels dropped")


def test_channels_survive_on_disk(tmp_path: Path) -> None:
    model = Net()
    with hookcore.watch(model, server=None, budget=None, keep=tmp_path) as watcher:
        watcher.probe("size", probes.channel_rms, include="act", every=2)
        train(model, 6)
        watcher.flush()
        store = watcher.store
    expected = store.channels("act probe [size]")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    reopened = Store()
    load_into(reopened, read_archive(folder))
    found = reopened.channels("act probe [size]")
    np.testing.assert_array_equal(found.values, expected.values)
    assert found.first_step.tolist() == [0, 2, 4]


def test_merged_rows_and_columns_show_the_largest_value_with_nan_first() -> None:
    values = np.random.default_rng(0).normal(size=(10, 7)).astype(np.float32)  # step, channel
    values[4, 5] = np.nan
    store = store_with(*(snapshot(3 * step, row) for step, row in enumerate(values)))
    found = store.channels(0, columns=4, rows=3)
    assert found.first_step.tolist() == [0, 9, 18, 27]
    assert found.last_step.tolist() == [6, 15, 24, 27]
    assert found.channel.tolist() == [0, 3, 6]
    for row, channel in enumerate((0, 3, 6)):
        for column, step in enumerate((0, 3, 6, 9)):
            cell = values[step : step + 3, channel : channel + 3]
            assert found.values[row, column] == pytest.approx(np.max(cell), nan_ok=True)
    assert store.channels(0, first=10, last=13).first_step.tolist() == [12]
    grouped = store_with(snapshot(0, [1.0, 2.0, 3.0], channels=8))
    assert grouped.channels(0).channel.tolist() == [0, 3, 6]
    assert grouped.channels(0, rows=2).channel.tolist() == [0, 6]
    empty = store_with()
    assert empty.channels(0).values.shape == (0, 0)
    assert len(empty.channel_taps().taps) == 0


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=1200),
    st.integers(2**20, 2**22),
)
def test_a_full_log_merges_and_the_largest_value_of_every_channel_is_never_lost(steps: list[int], limit: int) -> None:
    store = Store(limit)
    store.announce((TAP,))
    truth: dict[int, np.ndarray[Any, Any]] = {}
    for number, step in enumerate(steps):
        values = np.random.default_rng(number).normal(size=40).astype(np.float32)
        truth[step] = np.maximum(truth.get(step, values), values)
        store.add_snapshot(snapshot(step, values))
    usage = store.usage()
    assert usage.parts["channels"].nbytes <= usage.parts["channels"].limit
    found = store.channels(0, columns=10_000)
    assert len(found.first_step) <= MAX_COLUMNS
    assert (np.diff(found.first_step) > 0).all()
    assert (found.first_step[1:] > found.last_step[:-1]).all()
    for column, (first, last) in enumerate(zip(found.first_step, found.last_step, strict=True)):
        inside = [values for step, values in truth.items() if first <= step <= last]
        np.testing.assert_array_equal(found.values[:, column], np.max(inside, axis=0).astype(np.float64))
    assert all(((found.first_step <= step) & (step <= found.last_step)).sum() == 1 for step in truth)


def test_a_tensor_of_a_different_width_starts_over_and_one_without_room_is_counted() -> None:
    store = store_with(snapshot(0, [1.0, 2.0]), snapshot(1, [1.0, 2.0]), snapshot(2, [1.0, 2.0, 3.0]))
    assert store.channels(0).first_step.tolist() == [2]
    assert store.usage().dropped["channels_dropped"] == 2
    store = store_with(snapshot(0, np.zeros(2**20)), max_bytes=2**20)
    assert store.usage().dropped["channels_refused"] == 1
    assert store.channels(0).channels == 0


# -- the setting -------------------------------------------------------------------------------------------------------


def test_the_setting_captures_channels_from_the_start_and_can_be_changed_in_a_running_training() -> None:
    model = Net()

    def change(number: int, *patterns: str) -> None:
        recorder_of(watcher).on_command(Command(number, "settings", changes={"channels": list(patterns)}))

    with hookcore.watch(model, server=None, budget=None, channels="act") as watcher:
        watcher.probe("mine", torch.mean, include="conv", every=1)
        train(model, 12)
        change(1, "conv")
        train(model, 12)
        change(2, "nothing.like.it")
        change(3)
        train(model, 12)
        watcher.flush()
        reader, store = watcher.reader(), watcher.store
        labels = [f"{module} probe [{name}]" for module in ("act", "conv") for name in ("channel_rms", "channel_zeros")]
        assert sorted(tap.label for tap in reader.channel_taps().taps) == labels
        assert [reader.channels(label).first_step.tolist() for label in labels] == [[0, 10]] * 2 + [[13, 23]] * 2
        (refused,) = [event for event in store.events() if event.name == "settings-refused"]
        assert "nothing.like.it" in refused.message
        assert recorder_of(watcher).capture.control.current_settings()["channels"] == []
        assert not watcher.errors
        assert len(reader.series("conv probe [mine]").first_step) == 36


def test_a_wrong_pattern_of_channels_is_an_error_and_leaves_no_hook() -> None:
    model, before = Net(), process_state()
    with pytest.raises(PatternError, match=r"nothing\.like\.it"):
        hookcore.watch(model, server=None, channels="nothing.like.it")
    assert process_state() == before


def test_capturing_channels_changes_no_bit() -> None:
    def outcome(**settings: Any) -> tuple[str, str]:
        seed_all()
        model = Net()
        with hookcore.watch(model, server=None, budget=None, **settings):
            train(model, 25)
        return digest(model.state_dict()), random_state()

    assert outcome(channels="*") == outcome()


# -- REST --------------------------------------------------------------------------------------------------------------


def test_rest_lists_the_taps_and_answers_for_one() -> None:
    world = World()
    tap = Tap("layers.0", "probe", "size")
    frame: Frame = make_frame(50, [], new_taps=(tap,))
    world.run.store.append(frame)
    for step in range(3):
        world.run.store.add_snapshot(snapshot(step, [step, np.inf, 2.0], tap=tap))
    world.run.changes.tell()
    (listed,) = world.json("channels")["taps"]
    assert listed["label"] == "layers.0 probe [size]"
    assert world.json("channels", match="nothing")["taps"] == []
    said = world.json("channels", tap=listed["number"], **{"from": 1})
    assert said["values"] == [[1.0, 2.0], ["Infinity", "Infinity"], [2.0, 2.0]]
    assert (said["channels"], said["channel"], said["first_step"]) == (3, [0, 1, 2], [1, 2])
    assert "nobody probe [x]" in world.error("channels", 400, tap="nobody probe [x]")
