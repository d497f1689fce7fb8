"""How soon a step is seen: from its end in the trainer to its arrival at a reader of /api/v1/live.

python -m benchmarks.live                     # 1,000 taps, 20 steps a second, a minute of each
python -m benchmarks.live --quick             # a few seconds of each
python -m benchmarks.live --only training

Trainer, server and reader are three processes with one clock. `sender` posts frames at a steady rate; `training` is a
real loop with `hookcore.watch(model, server=...)`. A step that came coalesced with later ones counts with the time at
which that message arrived.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks import traffic

P50_MS: Final = 50.0
P99_MS: Final = 150.0
_WARM_UP: Final = 10  # first steps that don't count: connections, taps, the first compilation


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taps", type=int, default=1000)
    parser.add_argument("--hz", type=float, default=20.0, help="steps a second (default: 20)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part (default: 60)")
    parser.add_argument("--quick", action="store_true", help="three seconds of each part")
    parser.add_argument("--only", choices=["sender", "training"], help="one part")
    chosen = parser.parse_args(arguments)
    steps = int((3.0 if chosen.quick else chosen.seconds) * chosen.hz) + _WARM_UP
    for name, part in (("sender", _send), ("training", _train)):
        if chosen.only in (None, name):
            print(
                f"\n{name}: {chosen.taps:,} taps at {chosen.hz:g} steps a second, {steps - _WARM_UP} steps", flush=True
            )
            measure(part, chosen.taps, chosen.hz, steps)


def measure(part: Any, taps: int, hz: float, steps: int) -> dict[str, float]:
    """Return the delays of one part's steps."""
    with traffic.server_process() as server:
        results: Any = traffic.spawn.Queue()
        reader = traffic.spawn.Process(target=_read, args=(server.url, steps - 1, results), daemon=True)
        trainer = traffic.spawn.Process(target=part, args=(server.url, taps, hz, steps, results), daemon=True)
        reader.start()
        before = server.cpu_s
        trainer.start()
        found = dict(results.get(timeout=60 + 10 * steps / hz) for _ in range(2))
        cpu = server.cpu_s - before
        for process in (trainer, reader):
            process.join(30)
    return _report(found["ended"], found["arrived"], cpu)


def _report(ended: dict[int, float], arrived: list[tuple[int, int, float]], cpu_s: float) -> dict[str, float]:
    seen = {step: at for first, last, at in arrived for step in range(first, last + 1)}
    counted = sorted(ended)[_WARM_UP:]
    delays = [seen[step] - ended[step] for step in counted if step in seen]
    missing = len(counted) - len(delays)
    figures = traffic.describe("from the end of a step to its arrival", delays)
    print(f"  {missing} steps did not arrive; {len(arrived)} messages for {len(seen)} steps; server took {cpu_s:.1f} s")
    traffic.judge("p50", figures["p50"], P50_MS, "ms")
    traffic.judge("p99", figures["p99"], P99_MS, "ms")
    return {**figures, "missing": missing}


def _read(url: str, last_step: int, results: Any) -> None:
    arrived = []
    for at, frame in traffic.read_frames(url, "stat=rms"):
        arrived.append((frame["first_step"], frame["last_step"], at))
        if frame["last_step"] >= last_step:
            break
    results.put(("arrived", arrived))


def _send(url: str, taps: int, hz: float, steps: int, results: Any) -> None:
    sender = traffic.Sender(url, taps)
    ended = {0: sender.send()}
    time.sleep(2.0)  # time for the reader to find the run
    for step in traffic.pace(hz, steps - 1):
        ended[step + 1] = sender.send()
    results.put(("ended", ended))


def _train(url: str, taps: int, hz: float, steps: int, results: Any) -> None:
    import torch

    import hookcore

    torch.set_num_threads(1)
    model = layers_with(taps)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(8, 32)
    ended: dict[int, float] = {}
    with hookcore.watch(model, server=url, every=1, budget=None) as watcher:

        def step() -> None:
            model(data).square().mean().backward()
            optimizer.step()
            ended[watcher.current_step - 1] = time.time()
            optimizer.zero_grad()

        step()
        time.sleep(2.0)  # time for the reader to find the run
        for _ in traffic.pace(hz, steps - 1):
            step()
    results.put(("ended", ended))


def layers_with(taps: int) -> Any:
    """Return a model with about this many taps: outputs, weights, and biases of layers, and their gradients."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(max(1, taps // 4))))


if __name__ == "__main__":
    main()
