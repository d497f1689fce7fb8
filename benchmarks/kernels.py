"""The kernels alone: a tensor's whole statistics against one torch operator on the same tensor.

python -m benchmarks.kernels                                 # well under a minute
python -m benchmarks.kernels --threads 1 --clock cpu         # on a machine that others use too
python -m benchmarks.kernels --sizes 4096 1048576

"In cache" is one tensor again and again; "out of cache" goes round through so many tensors that each has left the
cache when its turn comes. On a machine with a GPU the Triton kernel is timed against a copy on the device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import Length, Seconds, Spread, describe_machine, no_collection, take_turns
from hookcore.observe.arena import CpuArena
from hookcore.observe.device import DeviceArena

SIZES: Final = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
GPU_SIZES: Final = (1 << 16, 1 << 20, 1 << 24, 1 << 27)
SMALL_SIZES: Final = (768, 768, 768, 768, 2304, 3072, 589_824, 589_824) * 40  # about the weights of GPT-2, twice
OUT_OF_CACHE_BYTES: Final = 256 * 2**20
TURN_S: Final = 0.002
COPY_BYTES: Final = 2**29
SUM, NORM = "torch.sum", "torch.linalg.vector_norm"
OURS: Final = {"moments": 0, "and a sketch of 65,536": 65_536, "and a sketch of all": None}
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def time_cpu(
    size: int, in_cache: bool, dtype: torch.dtype, clock: Callable[[], float], rounds: int
) -> dict[str, Seconds]:
    """Return the seconds per call of each contender, by round."""
    bytes_each = size * dtype.itemsize
    number = 1 if in_cache else max(2, -(-OUT_OF_CACHE_BYTES // bytes_each))
    tensors = (
        torch.randn(number * size, generator=torch.Generator().manual_seed(0)).to(dtype).view(number, size).unbind()
    )
    contenders: dict[str, Callable[[Tensor], object]] = {SUM: torch.sum, NORM: torch.linalg.vector_norm}
    contenders |= {name: _observer(limit) for name, limit in OURS.items()}
    tasks = {name: _turn(call, itertools.cycle(tensors), clock) for name, call in contenders.items()}
    return take_turns(tasks, Length(0.0, rounds=rounds))


def _observer(limit: int | None) -> Callable[[Tensor], None]:
    arena = CpuArena(1, limit)
    arena.begin_step()
    row = arena.row(0)
    return lambda tensor: arena.observe(tensor, row)


def _turn(
    call: Callable[[Tensor], object], tensors: Iterator[Tensor], clock: Callable[[], float]
) -> Callable[[], float]:
    """Return a turn of as many calls as take some time, measured now. A turn's first call is not timed."""
    started = clock()
    for _ in range(3):
        call(next(tensors))
    times = max(1, round(TURN_S / max(1e-7, (clock() - started) / 3)))

    def turn() -> float:
        with no_collection():
            call(next(tensors))
            started = clock()
            for _ in range(times):
                call(next(tensors))
            return (clock() - started) / times

    return turn


def print_cpu(sizes: Sequence[int], dtype: str, clock: Callable[[], float], rounds: int) -> list[dict[str, Any]]:
    """Print a line for each way that our kernel can work; return everything for JSON."""
    found = []
    print(
        f"\n{'values':>10} {'':12} {'':23} {'us a call':>9} {'ns a value':>10} {'to ' + SUM:>25} {'to vector_norm':>24}"
    )
    for size, in_cache in itertools.product(sizes, (True, False)):
        figures = time_cpu(size, in_cache, DTYPES[dtype], clock, rounds)
        where = "in cache" if in_cache else "out of cache"
        for name in OURS:
            median = float(np.median(figures[name]))
            ratios = {base: Spread.of(figures[name] / figures[base]) for base in (SUM, NORM)}
            print(
                f"{size:10,} {where:12} {name:23} {median * 1e6:9.1f} {median / size * 1e9:10.3f}"
                f" {ratios[SUM]!s:>25} {ratios[NORM]!s:>24}"
            )
            beside = {base: ratio.as_dict() for base, ratio in ratios.items()}
            found.append({"values": size, "where": where, "what": name, "seconds": median, "ratios": beside})
    return found


def measure_copy(device: torch.device, rounds: int) -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    turn = _gpu_turn(lambda: target.copy_(source), 10)
    return 2 * COPY_BYTES / float(np.median([turn() for _ in range(rounds)]))


def print_gpu(rounds: int) -> list[dict[str, Any]]:
    """Compare the Triton kernel with the time that its bytes take at the bandwidth of a copy."""
    device = torch.device("cuda", torch.cuda.current_device())
    bandwidth = measure_copy(device, rounds)
    name = torch.cuda.get_device_name(device)
    print(f"\n{name}: a copy of {COPY_BYTES >> 20} MiB reads and writes {bandwidth / 1e9:.0f} GB/s")
    print(f"{'values':>13} {'type':10} {'':24} {'us a call':>10} {'to its bytes at that speed':>28}")
    found = []
    for size, dtype, limit in itertools.product(GPU_SIZES, (torch.float32, torch.bfloat16), (65_536, None)):
        what = f"a sketch of {'all' if limit is None else f'{limit:,}'}"
        arena = DeviceArena(device, 1, limit)
        arena.begin_step()
        least = size * dtype.itemsize / bandwidth
        # Enough tensors to leave the second-level cache; the smallest sizes show the cost of a launch instead.
        number = min(64, max(1, -(-OUT_OF_CACHE_BYTES // (size * dtype.itemsize))))
        tensors = itertools.cycle([torch.randn(size, device=device).to(dtype) for _ in range(number)])
        turn = _gpu_turn(lambda arena=arena, tensors=tensors: arena.observe(next(tensors), 0), 50)  # type: ignore[misc]
        spread = Spread.of(np.array([turn() for _ in range(rounds)]) / least)
        if arena.fallback_reason:
            raise RuntimeError(f"the Triton kernel did not run: {arena.fallback_reason}")
        kind = str(dtype).removeprefix("torch.")
        print(f"{size:13,} {kind:10} {what:24} {spread.median * least * 1e6:10.1f} {spread!s:>28}")
        found.append({"values": size, "type": kind, "what": what, "to_bytes": spread.as_dict(), "bandwidth": bandwidth})
    return found


def print_together(rounds: int) -> list[dict[str, Any]]:
    """Time the small tensors of an optimizer's hook on device and host: each by its own launch, and all by one."""
    from hookcore.observe.triton_kernel import add_all

    device = torch.device("cuda", torch.cuda.current_device())
    tensors = [torch.randn(size, device=device) for size in SMALL_SIZES]
    slots = list(range(len(tensors)))
    found = []
    print(f"\n{len(tensors)} tensors of {min(SMALL_SIZES):,} to {max(SMALL_SIZES):,} values: us a tensor")
    for limit in (0, 65_536):
        arena = DeviceArena(device, len(tensors), limit)
        arena.begin_step(limit)
        arena.kernel = arena.kernel._replace(add_all=add_all)
        ways: dict[str, Callable[[], object]] = {
            "one by one": lambda arena=arena: list(map(arena.observe, tensors, slots)),  # type: ignore[misc]
            "together": lambda arena=arena: arena.observe_all(list(zip(tensors, slots, strict=True))),  # type: ignore[misc]
        }
        for name, call in ways.items():
            on_device = _gpu_turn(call, 5)
            both = on_device, lambda call=call: _on_host(call)  # type: ignore[misc]
            there, here = (float(np.median([turn() for _ in range(rounds)])) / len(tensors) for turn in both)
            what = f"{name}, {'with' if limit else 'without'} histograms"
            print(f"{what:30} {there * 1e6:8.2f} on the device {here * 1e6:8.2f} of the host")
            found.append({"what": what, "device": there, "host": here})
        if arena.fallback_reason:
            raise RuntimeError(f"the Triton kernel did not run: {arena.fallback_reason}")
    return found


def _on_host(call: Callable[[], object]) -> float:
    """Return how long the host takes to launch, while the device has nothing else to do."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _gpu_turn(call: Callable[[], object], times: int) -> Callable[[], float]:
    """Return the mean time of a call on the device, between two events. Launches are queued one after another."""

    def turn() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        call()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times

    turn()
    return turn


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the requested parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of values")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="torch's threads")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu needs --threads 1")
    parser.add_argument("--json", metavar="FILE", help="write everything to this file as well")
    chosen = parser.parse_args(arguments)
    if chosen.clock == "cpu" and chosen.threads != 1:
        parser.error("--clock cpu counts the threads that wait for each other: it needs --threads 1")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    machine = describe_machine()
    print(f"{machine}; {chosen.dtype}; clock: {chosen.clock}; {chosen.rounds} rounds: medians with quartiles")
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    document: dict[str, Any] = {"machine": machine, "cpu": print_cpu(chosen.sizes, chosen.dtype, clock, chosen.rounds)}
    if torch.cuda.is_available():
        document["gpu"] = print_gpu(chosen.rounds)
        document["together"] = print_together(chosen.rounds)
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
