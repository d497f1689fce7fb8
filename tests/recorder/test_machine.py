"""Samples of the machine: what is read, how it gets into a run, and that the training never waits for it."""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.recorder.context import Ended
from hookcore.recorder.machine import MAX_FAILURES, Gpus, Host, Sample, Sampler, open_host
from hookcore.records.vocabulary import (
    CPU_MACHINE,
    CPU_PROCESS,
    DISK_READ,
    DISK_WRITTEN,
    MACHINE_LABEL,
    MEMORY_MACHINE,
    MEMORY_PROCESS,
    NET_RECEIVED,
    NET_SENT,
    SAMPLES_RATE,
    SENSORS_LABEL,
    STEPS_RATE,
    SYSTEM,
    TIME,
)
from hookcore.store import Store
from hookcore.watcher import parts_of
from tests.build import frame, stats_of
from tests.gpus import GIB, Nvml, NvmlError, device
from tests.inside import module_of, recorder_of, threads_named

PACE: Any = module_of("Throughput")
THREAD: Any = module_of("Idle")

Times = namedtuple("Times", "user system idle guest")


class Psutil:
    """A machine whose counters the test sets."""

    Error = OSError

    def __init__(self) -> None:
        self.user, self.own, self.read, self.received = 10.0, 1.0, 100, 50
        self.has_disks = True

    def Process(self) -> Any:  # noqa: N802
        return SimpleNamespace(
            cpu_times=lambda: Times(self.own, 0.5, 0.0, 0.0), memory_info=lambda: SimpleNamespace(rss=3 * GIB)
        )

    def cpu_times(self) -> Any:
        return Times(self.user, 2.0, 1000.0, self.user)

    def cpu_count(self) -> int:
        return 4

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=16 * GIB, available=6 * GIB)

    def disk_io_counters(self) -> Any:
        if not self.has_disks:
            raise NotImplementedError
        return SimpleNamespace(read_bytes=self.read, write_bytes=7)

    def net_io_counters(self, pernic: bool) -> Any:
        card = SimpleNamespace(bytes_recv=self.received, bytes_sent=0)
        return {"lo": SimpleNamespace(bytes_recv=10**9, bytes_sent=10**9), "eth0": card, "eth1": card}


def test_a_host_is_read_as_rates_since_the_last_reading() -> None:
    machine = Psutil()
    host = Host(machine)
    first = host.read(100.0)
    assert first == Sample(
        {MEMORY_PROCESS: 3.0 * GIB, MEMORY_MACHINE: 10.0 * GIB}, {MACHINE_LABEL: "4 cores, 17.2 GB of memory"}
    )
    machine.user, machine.own, machine.read, machine.received = 17.0, 2.0, 4100, 1050
    second = host.read(102.0)
    assert not second.facts
    assert second.numbers == {
        CPU_PROCESS: 0.5,
        CPU_MACHINE: 3.5,  # neither idle time nor guest time, which is part of user time
        DISK_READ: 2000.0,
        DISK_WRITTEN: 0.0,
        NET_RECEIVED: 1000.0,  # both cards, without the loopback
        NET_SENT: 0.0,
        MEMORY_PROCESS: 3.0 * GIB,
        MEMORY_MACHINE: 10.0 * GIB,
    }


def test_missing_counters_are_left_out() -> None:
    machine = Psutil()
    host = Host(machine)
    host.read(0.0)
    machine.has_disks, machine.received = False, 10  # a card was replaced, so its counter started over
    machine.user = 11.0
    names = set(host.read(1.0).numbers)
    assert names == {CPU_PROCESS, CPU_MACHINE, NET_SENT, MEMORY_PROCESS, MEMORY_MACHINE}


def test_this_machine_can_be_read() -> None:
    read = open_host()
    first = read(0.0)
    assert first.numbers[MEMORY_MACHINE] > first.numbers[MEMORY_PROCESS] / 100 > 0
    assert "cores" in first.facts[MACHINE_LABEL]
    assert read(1.0).numbers[CPU_PROCESS] >= 0


ALLOCATOR = {"allocated": 5.0 * GIB, "reserved": 8.0 * GIB, "peak": 7.0 * GIB, "retries": 2.0}
SENSORS = {"utilization": 87.0, "memory": 20.0 * GIB, "power": 312.5, "temperature": 61.0}


def test_gpus_are_read_with_their_sensors_and_the_allocator() -> None:
    gpus = Gpus(lambda: [device(0, "GPU-a"), device(3, "GPU-b")], Nvml)
    found = gpus.read(0.0)
    numbers = {f"gpu0/{name}": value for name, value in (ALLOCATOR | SENSORS).items()}
    numbers |= {f"gpu3/{name}": value for name, value in (ALLOCATOR | SENSORS).items() if name != "power"}
    assert found.numbers == {SYSTEM + name: value for name, value in numbers.items()}
    assert found.facts == {"machine gpu0": "NVIDIA H100, 85.9 GB", "machine gpu3": "NVIDIA H100, 85.9 GB"}
    assert gpus.read(1.0) == Sample(found.numbers, {})


def no_package() -> Any:
    raise ImportError("No module named 'pynvml'")


def no_driver() -> Any:
    raise NvmlError("NVML Shared Library Not Found")


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (no_package, "not read: the package nvidia-ml-py is not installed"),
        (no_driver, "not read: NVML Shared Library Not Found"),
        (lambda: Nvml(known=()), "not read: Not Found"),
    ],
)
def test_without_sensors_a_run_says_why_and_has_the_allocator(opened: Callable[[], Any], words: str) -> None:
    gpus = Gpus(lambda: [device(0, "GPU-a")], opened)
    found = gpus.read(0.0)
    assert found.numbers == {f"{SYSTEM}gpu0/{name}": value for name, value in ALLOCATOR.items()}
    assert found.facts[SENSORS_LABEL] == words
    assert gpus.read(1.0) == Sample(found.numbers, {})


def test_no_gpu_is_touched_unless_torch_uses_one() -> None:
    def fail() -> Any:
        raise AssertionError("NVML was opened")

    assert PACE.cuda_devices() == []
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    assert Gpus(PACE.cuda_devices, fail).read(0.0) == Sample()


# --- The sampler


def test_a_sampler_returns_the_mean_since_the_last_reading() -> None:
    samples = iter([Sample({"a": 1.0, "b": 4.0}), Sample({"a": 3.0}, {"fact": "x"}), Sample({"a": 8.0})])
    sampler = Sampler([lambda: lambda now: next(samples)], lambda *failure: None)
    sampler.open()
    assert sampler.take() is None
    sampler.sample()
    sampler.sample()
    assert sampler.take() == Sample({"a": 2.0, "b": 4.0}, {"fact": "x"})
    assert sampler.take() is None
    sampler.sample()
    assert sampler.take() == Sample({"a": 8.0})


def test_reading_never_waits_for_the_sampler() -> None:
    sampler = Sampler([lambda: lambda now: Sample({"a": 1.0})], lambda *failure: None)
    sampler.open()
    sampler.sample()
    with sampler.lock:
        assert sampler.take() is None
    assert sampler.take() == Sample({"a": 1.0})  # nothing was lost


def test_a_failing_source_is_reported_and_given_up() -> None:
    told: list[str] = []
    calls: list[float] = []

    def broken(now: float) -> Sample:
        calls.append(now)
        raise RuntimeError("the driver is gone")

    sources = [no_package, lambda: broken, lambda: lambda now: Sample({"a": 1.0})]
    sampler = Sampler(sources, lambda where, error: told.append(f"{where}: {error}"))
    sampler.open()
    for _ in range(MAX_FAILURES + 2):
        sampler.sample()
    assert len(calls) == MAX_FAILURES
    assert told == [
        "opening a source of system metrics: No module named 'pynvml'",
        *["reading system metrics: the driver is gone"] * MAX_FAILURES,
    ]
    assert sampler.take() == Sample({"a": 1.0})


def test_the_thread_samples_until_it_is_closed() -> None:
    seen = threading.Event()

    def read(now: float) -> Sample:
        seen.set()
        return Sample({"a": now})

    sampler = Sampler([lambda: read], lambda *failure: None)
    sampler.start()
    sampler.start()
    assert seen.wait(10)
    sampler.close()
    assert threads_named("hookcore-machine") == []


def test_closing_waits_for_no_sensor_that_hangs() -> None:
    reading, answer = threading.Event(), threading.Event()

    def read(now: float) -> Sample:
        reading.set()
        answer.wait(30)
        return Sample({"a": now})

    sampler = Sampler([lambda: read], lambda *failure: None)
    sampler.start()
    assert reading.wait(10)
    sampler.close()
    (thread,) = threads_named("hookcore-machine")
    answer.set()
    thread.join(10)
    assert not thread.is_alive()


# --- In a run


class Given:
    """A sampler whose samples the test gives."""

    def __init__(self, *_: Any) -> None:
        self.waiting: list[Sample] = []
        self.is_open = False

    @property
    def has_news(self) -> bool:
        return bool(self.waiting)

    def start(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def take(self) -> Sample | None:
        return self.waiting.pop(0) if self.waiting else None


def train(model: nn.Module, steps: int = 1, rows: int = 4, micro: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        for _ in range(micro):
            model(torch.randn(rows, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_samples_are_part_of_the_step_in_which_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PACE, "Sampler", Given)
    model = nn.Linear(2, 1)
    watcher = hookcore.watch(model, server=None, every=2, budget=None)
    machine: Any = recorder_of(watcher).capture.collector.machine
    assert machine.is_open
    train(model)  # step 0
    machine.waiting.append(Sample({CPU_PROCESS: 1.5}, {MACHINE_LABEL: "2 cores"}))
    train(model, 3)
    watcher.close()
    assert not machine.is_open
    reader = watcher.reader()
    found = reader.scalars(CPU_PROCESS)[CPU_PROCESS]
    assert (list(found.first_step), list(found.mean)) == ([1], [1.5])  # captured or not
    assert watcher.store is not None
    assert watcher.store.labels()[MACHINE_LABEL] == "2 cores"
    assert list(reader.scalars(TIME)[TIME].first_step) == [0, 1, 2, 3]
    assert watcher.store.captured() == 2  # samples capture nothing


def test_a_batch_is_counted_with_its_parts_and_keywords_and_not_in_evaluation() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, *, scale: float, values: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.inner(values) * scale)

    plain, named = nn.Linear(2, 1), Named()
    watcher = hookcore.watch(plain, server=None, budget=None)
    other = hookcore.watch(named, server=None, budget=None)
    train(plain, rows=6, micro=3)
    with torch.no_grad():
        plain(torch.randn(1000, 2))
    train(plain, rows=6, micro=3)
    optimizer = torch.optim.SGD(named.parameters(), lr=0.1)
    for _ in range(2):
        named(scale=2.0, values=torch.randn(5, 2)).sum().backward()
        optimizer.step()
    watcher.close()
    other.close()
    assert [root.samples for root in recorder_of(watcher).context.plans.roots] == [18]
    assert [root.samples for root in recorder_of(other).context.plans.roots] == [5]


def test_throughput_counts_the_samples_of_the_model_that_received_the_fewest() -> None:
    roots = [SimpleNamespace(samples=samples, tokens=0) for samples in (64, 32, 0)]
    context: Any = SimpleNamespace(ended=Ended(), plans=SimpleNamespace(roots=roots))
    speed = PACE.Throughput(context)
    assert speed.read(10.0) == Sample()  # no step has ended yet
    context.ended = Ended(2, 11.0)
    assert speed.read(12.0) == Sample()  # the first ends: it is unknown when their steps began
    context.ended = Ended(12, 13.0)
    assert speed.read(14.0).numbers == {STEPS_RATE: 5.0, SAMPLES_RATE: 160.0}
    roots.clear()
    context.ended = Ended(13, 14.0)
    assert speed.read(17.0).numbers == {STEPS_RATE: 1.0}


def test_a_step_that_takes_longer_than_a_sample_of_the_machine_does_not_look_like_none() -> None:
    plans = SimpleNamespace(roots=[SimpleNamespace(samples=8, tokens=0)])
    context: Any = SimpleNamespace(ended=Ended(1, 0.5), plans=plans)
    speed = PACE.Throughput(context)
    found = []
    for now in range(0, 40, 2):  # every two seconds; a step takes five
        context.ended = Ended(1 + now // 5, 0.5 + 5 * (now // 5))
        found.append(speed.read(float(now)).numbers)
    assert {tuple(each.items()) for each in found if each} == {((STEPS_RATE, 0.2), (SAMPLES_RATE, 1.6))}


class Idling:
    """A recorder between two steps, whose clock only the test moves."""

    def __init__(self) -> None:
        self.now, self.machine, self.shipped, self.times = 0.0, Given(), list[float](), list[float]()
        queue = SimpleNamespace(put=self.shipped.append)
        collector = SimpleNamespace(machine=self.machine, queue=queue, take_between=self.take)
        nothing = SimpleNamespace(changes=[], apply_while_idle=lambda: None)
        self.context: Any = SimpleNamespace(ended=Ended(), events=[], lock=threading.RLock(), now=lambda: self.now)
        self.capture: Any = SimpleNamespace(commands=nothing, control=nothing, collector=collector)
        steady: Any = SimpleNamespace(leave=lambda: None)
        self.idle = THREAD.Idle(self.context, self.capture, steady)

    def take(self, time_s: float) -> float:
        self.machine.take()
        self.times.append(time_s)
        return self.now

    def pass_time(self, seconds: float, every: float = 2.0) -> None:
        for _ in range(int(seconds / every)):
            self.now += every
            if not self.machine.waiting:
                self.machine.waiting.append(Sample({"a": 1.0}))
            self.idle.tick()


def test_samples_are_sent_less_and_less_often_while_no_step_ends() -> None:
    world = Idling()
    world.pass_time(10)
    assert world.shipped == []  # before the first step, there is no step that they could belong to
    world.context.ended = Ended(1, world.now)
    world.now += THREAD.IDLE_S / 2
    world.idle.tick()
    assert world.shipped == []
    world.pass_time(20)
    assert len(world.shipped) == 10
    world.pass_time(24 * 3600)
    assert 100 < len(world.shipped) < 600
    world.context.ended, world.shipped[:] = Ended(1, world.now), []
    world.pass_time(3, every=0.5)
    assert world.shipped  # the next pause starts over


def test_the_machine_is_not_sampled_while_the_end_waits_for_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = hookcore.watch(nn.Linear(4, 1), server=None)
    assert len(threads_named("hookcore-machine")) == 1
    waiting: list[list[threading.Thread]] = []
    monkeypatch.setattr(parts_of(watcher).explainer, "wait", lambda: waiting.append(threads_named("hookcore-machine")))
    watcher.close()
    assert waiting == [[]]


def test_what_arrives_after_the_last_step_has_the_time_at_which_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Idling()
    monkeypatch.setattr(THREAD, "time", SimpleNamespace(time=lambda: 1000.0))
    world.context.events.append("such as an error")
    world.context.ended, world.now = Ended(3, 5.0), 65.0  # such as after the replay of a step
    world.context.errors = SimpleNamespace(news=lambda _: [])
    world.capture.sentinel = SimpleNamespace(read_late=lambda *_, **__: None)
    world.capture.observers = SimpleNamespace(
        snapshots=SimpleNamespace(copies=None), probes=SimpleNamespace(channels=None)
    )
    world.capture.media = world.capture.moments = None
    world.capture.samples = SimpleNamespace(hurry=None)
    steps: Any = SimpleNamespace(clock=None, steady=None)
    description: Any = SimpleNamespace(send_news=lambda ended: None, problems=SimpleNamespace(emit_new=lambda: None))
    THREAD.Rounds(world.context, world.capture, steps, world.context, description).end()
    assert world.times == [940.0]


def test_a_store_keeps_the_machine_apart_from_the_scalars_of_each_step() -> None:
    alone, beside = Store(2**26), Store(2**26)
    sampled = {f"{SYSTEM}{number}": float(number) for number in range(8)}
    for step in range(1000):
        alone.append(frame(step, stats_of(0), scalars={"loss": 1.0}))
        beside.append(frame(step, stats_of(0), scalars={"loss": 1.0} | (sampled if step % 10 == 0 else {})))
    assert beside.usage().parts["scalars"] == alone.usage().parts["scalars"]
    assert beside.usage().parts["system"].nbytes <= beside.usage().parts["system"].limit
    found = beside.scalars(SYSTEM + "7")
    assert found.first_step.tolist() == list(range(0, 1000, 10))
    assert set(found.mean.tolist()) == {7.0}
    assert beside.scalar_names()[-8:] == list(sampled)
    assert len(beside.scalar_rows(SYSTEM + "7").first) == 100
    parts = beside.usage().parts.items()  # names don't compete with values
    assert sum(part.limit for name, part in parts if name != "names") <= beside.usage().max_bytes


def test_a_store_counts_items_without_room() -> None:
    store = Store(2**20)
    store.append(frame(0, stats_of(0), scalars={"loss": 1.0} | {f"{SYSTEM}{number}": 1.0 for number in range(100)}))
    assert store.usage().dropped["scalars_refused"] > 0
    assert [event.name for event in store.events()] == ["scalars-refused"]
    assert store.scalars("loss").mean.tolist() == [1.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_samples_nothing() -> None:
    model = nn.Linear(2, 1)
    with hookcore.watch(model, server=None):
        assert any(thread.name == "hookcore-machine" for thread in threading.enumerate())
        child = os.fork()
        if not child:
            ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("hookcore")]
            os._exit(len(ours))
        assert os.waitpid(child, 0)[1] == 0
