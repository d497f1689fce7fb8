"""Each benchmark can be started. Their results are not tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.warm import python

ROOT = Path(__file__).parents[2]


def test_the_docs_name_each_benchmark() -> None:
    docs = (ROOT / "docs" / "benchmarks.md").read_text()
    runnable = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text()]
    assert len(runnable) > 10
    assert [name for name in runnable if f"python -m benchmarks.{name} " not in docs] == []


def test_each_benchmark_finds_everything_that_it_imports() -> None:
    names = [f"benchmarks.{path.stem}" for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    assert len(names) > 10
    # In a separate process, because some benchmarks set variables that later tests would see.
    subprocess.run([python(), "-c", f"import {', '.join(names)}"], cwd=ROOT, check=True, timeout=120)
