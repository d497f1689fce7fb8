"""The benchmarks: each one can be started. Their figures are for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_each_benchmark_finds_everything_that_it_imports() -> None:
    names = [f"benchmarks.{path.stem}" for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    assert len(names) > 10
    # In a process of its own, because some set variables that later tests would see.
    subprocess.run([sys.executable, "-c", f"import {', '.join(names)}"], cwd=ROOT, check=True, timeout=120)
