"""The benchmarks: each one can be started. Their figures are for people."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_finds_all_that_it_imports(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
