"""The command line of the benchmarks that have parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Size = TypeVar("Size")


def run_parts(
    about: str | None,
    parts: Mapping[str, Callable[[Size], None]],
    full: Size,
    quick: Size,
    arguments: Sequence[str] | None,
) -> None:
    """Run the chosen parts, in full or with `--quick`; `about` is what `--help` says."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers, or short")
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    chosen = parser.parse_args(arguments)
    for name in chosen.only:
        parts[name](quick if chosen.quick else full)
