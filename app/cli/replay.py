"""`replay`: run the step in a capsule again, and find the operator that went wrong."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from hookcore.config import bytes_of
from hookcore.errors import ArgumentError

from .flags import Commands, add_command

EXAMPLES: Final = """
  hookcore replay step.capsule                     find the operator and the line that made a NaN
  hookcore replay step.capsule --above 1e4         find the first one above a magnitude
  hookcore replay step.capsule --json              print JSON, for programs
"""


def add(commands: Commands) -> None:
    replay = add_command(
        commands,
        "replay",
        "Run the training step in a capsule again, and show the operator and the line that made a non-finite value. "
        "This runs code from the capsule: replay only those that you trust.",
        EXAMPLES,
    )
    replay.add_argument("capsule", help="file with the step; its name ends in .capsule")
    replay.add_argument("--above", type=float, default=None, metavar="X", help="also report magnitudes above X")
    replay.add_argument(
        "--memory",
        default="",
        metavar="SIZE",
        help="memory limit, such as 8GiB; also lowers the priority of the process",
    )
    replay.add_argument(
        "--definitions",
        action="store_true",
        help="if the model is defined in the main script, run only the script's imports and definitions",
    )
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(run=_replay)


def _replay(given: argparse.Namespace, _environment: Mapping[str, str]) -> str:
    if given.memory:
        _yield_to_others(given.memory)
    capsules = import_module("hookcore.capsules")  # imports torch, which no other command should wait for
    print(f"hookcore: {capsules.read_about(given.capsule)['warning']}", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):  # what the training's own code prints
        found = capsules.replay(given.capsule, given.above, definitions=given.definitions)
    return json.dumps(found.as_dict(), indent=2) if given.json else str(capsules.as_text(found))


def _yield_to_others(memory: str) -> None:
    try:
        limit = bytes_of(memory)
    except ValueError as error:
        raise ArgumentError(f"memory={memory!r} is invalid: use a size such as 8GiB. {error}") from None
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    os.nice(2)  # just below the training, because a person waits for the answer
