"""How soon a new dashboard answers, and shows a step, after `watch()`: on idle cores, and beside busy processes.

    python -m benchmarks.firstanswer [--busy 4] [--rounds 3] [--demo 20000]

Each round begins without a dashboard, in a home folder that is kept between rounds: in the first one, nothing is
prepared on disk, and Python compiles all modules. This prints seconds by the clock from the call of `watch()`, and what
the dashboard had used when it answered for the first time, and after its first page: processor time, memory, and, in a
round of its own, the imported modules. The page is requested twenty times per second. With `--demo`, it also prints the
memory of a dashboard before its first run, and while the demo trains this many steps as fast as it can.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from benchmarks.traffic import cpu_s, sum_of

PATIENCE_S: Final = 60.0
PREPARED_S: Final = 10.0  # until a dashboard has prepared what later readers need
SAVED_S: Final = 10.0  # until the rest of a run is saved
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
    environment = environment_in(home)
    with ExitStack() as stack:
        training = subprocess.Popen([sys.executable, "-c", TRAIN], stdout=subprocess.PIPE, text=True, env=environment)
        stack.callback(subprocess.run, [HOOKCORE, "stop"], env=environment, capture_output=True, check=False)
        stack.callback(training.wait)
        stack.callback(training.kill)
        assert training.stdout is not None
        began, returned, url = training.stdout.readline().split()
        base, _, run = url.rpartition("/runs/")
        seconds_until(f"{base}/healthz", bool, float(began))
        dashboard = psutil.Process(json.loads((home / "dashboard.json").read_text())["pid"])
        listens = cpu_s(dashboard)
        page = seconds_until(f"{base}/", lambda text: "<html" in text, float(began))
        used, held = cpu_s(dashboard), dashboard.memory_info().rss / 2**20
        shows = seconds_until(f"{base}/api/v1/runs/{run}", lambda about: (about["newest_step"] or 0) > 0, float(began))
        seconds = {"watch": float(returned) - float(began), "page": page, "step": shows}
        return {**seconds, "listens": listens, "processor": used, "memory": held}


def environment_in(home: Path) -> dict[str, str]:
    """Return the environment of a training whose dashboard has a home folder, with the compiled modules in there."""
    added = {"HOOKCORE_HOME": str(home), "HOOKCORE_PORT": "0", "PYTHONPYCACHEPREFIX": str(home / "compiled")}
    return {**os.environ, **added, "PYTHONDONTWRITEBYTECODE": ""}


def memory_of(pid: int) -> str:
    """Return how much memory a process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    mib = {name: int(size.split()[0]) / 1024 for name, size in (line.split(":") for line in lines)}
    private = mib["Private_Clean"] + mib["Private_Dirty"]
    return f"RSS {mib['Rss']:.0f}, PSS {mib['Pss']:.0f}, private {private:.0f} MiB"


def watch_demo(home: Path, steps: int) -> None:
    """Print the memory of a dashboard before its first run, and ten times during the demo."""
    environment = environment_in(home)
    url = start_dashboard(environment)
    try:
        seconds_until(f"{url}/", bool, time.time())
        dashboard = psutil.Process(json.loads((home / "dashboard.json").read_text())["pid"])
        time.sleep(PREPARED_S)
        print(f"before the first run: {memory_of(dashboard.pid)}", flush=True)
        before = cpu_s(dashboard)
        command = [HOOKCORE, "demo", "--steps", str(steps), "--most-per-s", "0"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            for line in demo.stdout:
                step = re.match(r"step +(\d+)", line)
                if step and int(step[1]) % (steps // 10) == 0:
                    used = cpu_s(dashboard) - before
                    print(f"step {step[1]}: {memory_of(dashboard.pid)}, {used:.0f} s of processor time", flush=True)
        time.sleep(SAVED_S)
        counted = sum_of(urllib.request.urlopen(f"{url}/metrics").read(), "hookcore_memory_used_bytes") / 2**20
        highest = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{dashboard.pid}/status").read_text())
        assert highest is not None
        print(f"after the run: {memory_of(dashboard.pid)}; highest RSS {int(highest[1]) / 1024:.0f} MiB")
        print(f"the server's own count of the run: {counted:.0f} MiB")
    finally:
        subprocess.run([HOOKCORE, "stop"], env=environment, capture_output=True, check=False)


def start_dashboard(environment: dict[str, str]) -> str:
    """Start a dashboard, and return its address."""
    start = "from hookcore.delivery.dashboard.process import join_or_start; print(join_or_start().url)"
    command = [sys.executable, "-c", start]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def count_modules(home: Path) -> tuple[int, int]:
    """Return how many modules a new dashboard has imported when it answers, and after its first page."""
    environment = {**environment_in(home), "PYTHONPROFILEIMPORTTIME": "1"}  # Python writes each one to the log
    url, counts = start_dashboard(environment), []
    try:
        for path, is_right in (("/healthz", bool), ("/", lambda text: "<html" in text)):
            seconds_until(url + path, is_right, time.time())
            counts.append((home / "dashboard.log").read_text().count("import time:"))
    finally:
        subprocess.run([HOOKCORE, "stop"], env=environment, capture_output=True, check=False)
    return counts[0], counts[1]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--demo", type=int, default=0, help="steps of the demo whose memory is measured")
    given = parser.parse_args()
    print(f"{describe_machine()}, {given.busy} busy processes")
    with tempfile.TemporaryDirectory() as home, busy(given.busy):
        for number in range(given.rounds):
            found = measure(Path(home))
            kept = "nothing prepared" if number == 0 else "prepared by an earlier dashboard"
            print(
                f"watch() took {found['watch']:.2f} s, the page came after {found['page']:.2f} s, a step after "
                f"{found['step']:.2f} s; of the dashboard's processor time {found['listens']:.2f} s until it answered, "
                f"{found['processor']:.2f} s with the page, and {found['memory']:.0f} MiB ({kept})"
            )
            time.sleep(1.0)
        answers, page = count_modules(Path(home))
        if given.demo:
            watch_demo(Path(home), given.demo)
        print(f"{answers} modules are imported until the dashboard answers, {page} with its first page")


if __name__ == "__main__":
    main()
