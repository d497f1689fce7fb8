"""`hookcore run`: runs an unmodified script under plain Python, with one file that is imported first.

Nothing here runs a script: this process becomes `python train.py`. Arguments, signals, exit code, tracebacks,
`__main__`, and `sys.path` are those of plain Python, because it is plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from hookcore.errors import ArgumentError

# Contains a `sitecustomize.py`, the module that Python imports before it runs anything.
START: Final = Path(__file__).parent / "start"
PATHS: Final = "PYTHONPATH"
PATHS_BEFORE: Final = "HOOKCORE_RUN_PYTHONPATH"  # the previous PYTHONPATH, which the script gets back


def command_of(python: str, script: Sequence[str]) -> list[str]:
    """Return the command that runs a script with its arguments, or `-m`, a module, and its arguments."""
    if not script or script[0] == "--":
        script = script[1:]
    if not script or (script[0] == "-m" and len(script) == 1):
        raise ArgumentError(
            "nothing to run: give a script or a module, as in `hookcore run train.py` or `hookcore run -m package`"
        )
    if script[0].startswith("-") and script[0] != "-m":
        raise ArgumentError(
            f"{script[0]!r} is not a flag of `hookcore run`: flags come before the script, the script's arguments "
            "after it; `hookcore run --help` lists the flags"
        )
    return [python, *script]


def become(script: Sequence[str], variables: Mapping[str, str], environment: Mapping[str, str]) -> NoReturn:
    """Run the script in place of this process. `variables` are settings, added to those of the environment."""
    command = command_of(sys.executable, script)
    before = environment.get(PATHS)
    changed = {**environment, **variables, PATHS: os.pathsep.join(filter(None, (str(START), before)))}
    changed[PATHS_BEFORE] = "" if before is None else f"={before}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, changed)
