"""Turns this process into Python with a script, and with a watcher that waits for torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from hookcore.errors import ArgumentError

# Holds a `sitecustomize.py`: the module that Python imports by itself before it runs anything.
START: Final = Path(__file__).parent / "start"
PATHS: Final = "PYTHONPATH"
PATHS_BEFORE: Final = "HOOKCORE_RUN_PYTHONPATH"  # what stood in it before, for the script to find there again


def command_of(python: str, script: Sequence[str]) -> list[str]:
    """The command that runs what was asked for: a script with its arguments, or `-m`, a module and its arguments."""
    if not script or script[0] == "--":
        script = script[1:]
    if not script or (script[0] == "-m" and len(script) == 1):
        raise ArgumentError(
            "nothing to run was given: give a script or a module, as in `hookcore run train.py` or "
            "`hookcore run -m package`"
        )
    if script[0].startswith("-") and script[0] != "-m":
        raise ArgumentError(
            f"{script[0]!r} is no flag of `hookcore run`: flags stand before the script, its own arguments behind it; "
            "`hookcore run --help` lists them"
        )
    return [python, *script]


def become(script: Sequence[str], variables: Mapping[str, str], environment: Mapping[str, str]) -> NoReturn:
    """Runs the script in this process's place. `variables` are settings, beside those of the environment."""
    command = command_of(sys.executable, script)
    before = environment.get(PATHS)
    changed = {**environment, **variables, PATHS: os.pathsep.join(filter(None, (str(START), before)))}
    changed[PATHS_BEFORE] = "" if before is None else f"={before}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, changed)
