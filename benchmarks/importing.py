"""The cost of imports beyond torch's own, and of `hookcore --help`, each in separate processes.

    python -m benchmarks.importing [--rounds 7]

The minimum of the rounds is reported, because other work on the machine only makes an import longer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

ALLOWED_S: Final = 0.3
_TIMED: Final = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
# The imports before the clock starts, and the timed ones.
IMPORTS: Final = {
    "import torch": ("pass", "import torch"),
    "import hookcore, after torch": ("import torch", "import hookcore"),
    "import hookcore; hookcore.watch, after torch": ("import torch", "import hookcore; hookcore.watch"),
}


def timed_import(before: str, code: str, rounds: int) -> float:
    """Return the seconds of an import, in the fastest of several processes."""
    command = [sys.executable, "-c", f"{before}; {_TIMED.format(code)}"]
    ran = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(rounds))
    return min(float(text) for text in ran)


def timed_command(command: Sequence[str], rounds: int) -> float:
    """Return the seconds of a whole command, in the fastest of several runs."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> int:
    """Print the figures; return 1 if `import hookcore` exceeds its limit."""
    parser = argparse.ArgumentParser(description="Measures what imports cost.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = {name: timed_import(before, code, rounds) for name, (before, code) in IMPORTS.items()}
    found["hookcore --help"] = timed_command([sys.executable, "-m", "hookcore_app.cli", "--help"], rounds)
    for name, seconds in found.items():
        print(f"{name:48} {seconds:7.3f} s")
    return int(found["import hookcore, after torch"] > ALLOWED_S)


if __name__ == "__main__":
    sys.exit(main())
