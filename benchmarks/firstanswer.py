"""How soon a new dashboard answers, and shows a step, after `watch()`: on idle cores, and beside busy processes.

    python -m benchmarks.firstanswer [--busy 4] [--rounds 3]

Each round begins without a dashboard, in a home folder that is kept between rounds: in the first one, nothing is
prepared on disk. This prints seconds by the clock from the call of `watch()`, and the processor time that the dashboard
had used at its first answer. The page is requested twenty times per second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.timing import busy, describe_machine
from benchmarks.traffic import cpu_s

PATIENCE_S: Final = 60.0
HOOKCORE: Final = str(Path(sys.executable).with_name("hookcore"))
TRAIN: Final = """
import sys, time, torch
from torch import nn
import hookcore
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer.step()
began = time.time()
watcher = hookcore.watch(model)
print(began, time.time(), watcher.url, flush=True)
batch = torch.randn(32, 64)
while True:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def ask(url: str) -> Any:
    """Return the answer of a server; None if there is none yet."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            body = answer.read()
            return json.loads(body) if "json" in answer.headers["content-type"] else body.decode()
    except (urllib.error.URLError, OSError):
        return None


def seconds_until(url: str, is_right: Any, began: float) -> float:
    """Return the seconds from `began` to the first answer that is right."""
    while time.time() < began + PATIENCE_S:
        answer = ask(url)
        if answer is not None and is_right(answer):
            return time.time() - began
        time.sleep(0.05)
    return float("nan")


def measure(home: Path) -> dict[str, float]:
    """Watch a training in a new process until a step is on its page."""
    environment = {**os.environ, "HOOKCORE_HOME": str(home)}
    with ExitStack() as stack:
        training = subprocess.Popen([sys.executable, "-c", TRAIN], stdout=subprocess.PIPE, text=True, env=environment)
        stack.callback(subprocess.run, [HOOKCORE, "stop"], env=environment, capture_output=True, check=False)
        stack.callback(training.wait)
        stack.callback(training.kill)
        assert training.stdout is not None
        began, returned, url = training.stdout.readline().split()
        base, _, run = url.rpartition("/runs/")
        page = seconds_until(f"{base}/", lambda text: "<html" in text, float(began))
        used = cpu_s(psutil.Process(json.loads((home / "dashboard.json").read_text())["pid"]))
        shows = seconds_until(f"{base}/api/v1/runs/{run}", lambda about: (about["newest_step"] or 0) > 0, float(began))
        return {"watch": float(returned) - float(began), "page": page, "step": shows, "processor": used}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{describe_machine()}, {given.busy} busy processes")
    with tempfile.TemporaryDirectory() as home, busy(given.busy):
        for number in range(given.rounds):
            found = measure(Path(home))
            kept = "nothing prepared" if number == 0 else "prepared by an earlier dashboard"
            print(
                f"watch() took {found['watch']:.2f} s, the page came after {found['page']:.2f} s, a step after "
                f"{found['step']:.2f} s; {found['processor']:.2f} s of the dashboard's processor time ({kept})"
            )
            time.sleep(1.0)


if __name__ == "__main__":
    main()
