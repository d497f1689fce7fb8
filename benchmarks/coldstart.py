"""The cost of a process's first watch, beyond `import torch`: seconds and memory.

    python -m benchmarks.coldstart [--rounds 5]

Every round starts new processes. One imports torch and trains a small network for three steps; the other does the same
and watches it. The smallest figures of all rounds count, because other work on the machine only adds to them. The
training's own time is not counted: torch imports its compiler in an optimizer's first step, watched or not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

ALLOWED_S: Final = 1.0
ALLOWED_MIB: Final = 60.0
TRAIN: Final = """
import json, sys, time
import torch
from torch import nn

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
before, wall, cpu = resident_mib(), time.perf_counter(), time.process_time()
if sys.argv[1] != "untouched":
    import hookcore
    watcher = hookcore.watch(model, server=None, budget=None)
took, worked = time.perf_counter() - wall, time.process_time() - cpu
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
if sys.argv[1] != "untouched":
    watcher.flush()
print(json.dumps({"wall": took, "cpu": worked, "mib": resident_mib() - before}))
"""


def train(how: str) -> dict[str, Any]:
    """Return the figures of one new process."""
    done = subprocess.run([sys.executable, "-c", TRAIN, how], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 if they exceed the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    found: dict[str, list[dict[str, Any]]] = {"untouched": [], "watched": []}
    for _ in range(rounds):
        for how, figures in found.items():
            figures.append(train(how))
    seconds, worked = (min(each[key] for each in found["watched"]) for key in ("wall", "cpu"))
    memory = min(each["mib"] for each in found["watched"]) - min(each["mib"] for each in found["untouched"])
    print(f"import hookcore and the first watch: {seconds:.2f} s ({worked:.2f} s of processor time)")
    print(f"memory after three watched steps, beyond the untouched training's: {memory:.1f} MiB")
    return int(worked > ALLOWED_S or memory > ALLOWED_MIB)


if __name__ == "__main__":
    sys.exit(main())
