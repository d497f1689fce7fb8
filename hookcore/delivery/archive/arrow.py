"""PyArrow, imported when it is first used: it takes 45 MB and 0.1 s, and a new dashboard has no run on disk to read."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["csv", "leave_out_pandas", "pa", "pc", "pq"]


class _Late:
    """A module that is imported when one of its names is needed."""

    without_pandas = False

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if _Late.without_pandas and "pyarrow" not in sys.modules and "pandas" not in sys.modules:
            _import_without_pandas()
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv
    import pyarrow.parquet as pq
else:
    pa, csv, pc, pq = map(_Late, ("pyarrow", "pyarrow.csv", "pyarrow.compute", "pyarrow.parquet"))


def leave_out_pandas() -> None:
    """Let PyArrow, once it is imported, not import pandas. For a process without data frames.

    PyArrow imports pandas, if it is installed, to make its first array, whatever that is made of. It takes 50 MB, and
    half a second.
    """
    _Late.without_pandas = True


class _NoPandas:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _import_without_pandas() -> None:
    finder: Any = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import_module("pyarrow").array([0])  # looks for pandas, and never again
    finally:
        sys.meta_path.remove(finder)
