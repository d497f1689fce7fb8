"""The folder of a run's capsules, in the user's private folder. Imports no torch: the server reads it too."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hookcore.dashboard.home import home

MAX_RUNS: Final = 20  # with capsules in the private folder; those of older ones are removed
SUFFIX: Final = ".capsule"
EXPLANATION: Final = ".json"  # of a replay, beside its capsule
_FOLDER: Final = "capsules"
_RUN: Final = re.compile(r"[\w-]{1,100}", re.ASCII)


def folder_of(run: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a run, which may not exist. Raises ServerError without a private folder."""
    if not _RUN.fullmatch(run):
        raise ValueError(f"{run!r} is not the id of a run")
    return home(environment) / _FOLDER / run


def prepare(folder: Path) -> None:
    """Create the folder of a run. Only this user can read what is in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove_old(folder: Path) -> int:
    """Remove the capsules of all but the newest runs beside this folder. Return how many runs lost theirs."""
    runs = sorted(_runs_beside(folder))
    for _, old in runs[:-MAX_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return max(0, len(runs) - MAX_RUNS)


def _runs_beside(folder: Path) -> Iterator[tuple[float, Path]]:
    for each in folder.parent.iterdir():
        with contextlib.suppress(OSError):
            if _RUN.fullmatch(each.name) and each.is_dir() and not each.is_symlink():
                yield each.stat().st_mtime, each
