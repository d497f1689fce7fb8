"""`report` and `replay`: a run as one HTML file, and the step in a capsule again."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from hookcore.config import bytes_of
from hookcore.errors import ArgumentError

from .flags import Commands, add_command, add_source, run_of_server, saved_run

REPORT_EXAMPLES: Final = """
  hookcore report                                  the newest run of your own dashboard
  hookcore report http://box:8642 --run run-1      a run of a server (token: HOOKCORE_TOKEN)
  hookcore report runs/x.hookcore -o report.html   a saved run
"""


def add_report(commands: Commands) -> None:
    about = "Write a report of a run: one HTML file of at most 10 MB that works offline."
    parser = add_command(commands, "report", about, REPORT_EXAMPLES)
    add_source(parser)
    parser.add_argument("-o", "--output", default="", help="output file (default: hookcore-RUN.html; - for stdout)")
    parser.add_argument("--from", dest="first", type=int, help="the first step to show (default: the first of the run)")
    parser.add_argument("--to", dest="last", type=int, help="the last step to show (default: the newest)")
    parser.add_argument("--at", type=int, help="the step that numbers are taken from (default: the newest shown)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=_report)


def _report(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    run_id, content = _content(given)
    if given.output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return ""
    path = Path(given.output or f"hookcore-{run_id}.html")
    _write(path, content, given.force)
    return f"wrote the report of {run_id} to {path} ({len(content) / 1e6:.1f} MB)"


def _content(given: argparse.Namespace) -> tuple[str, bytes]:
    run = saved_run(given)
    if run is not None:
        from ..pages.report import ReportSteps, report_of

        return run.id, report_of(run, ReportSteps(given.first, given.last, given.at))
    with run_of_server(given) as (client, run_id):
        return run_id, client.report(run_id, given.first, given.last, given.at)


def _write(path: Path, content: bytes, over: bool) -> None:
    """Write the file completely or not at all, so that a full disk doesn't destroy an existing file."""
    if path.exists() and not over:
        raise ArgumentError(f"{str(path)!r} already exists: choose another name with -o, or use --force")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ArgumentError(f"can't write {str(path)!r}: {error}; choose another path with -o") from None


REPLAY_EXAMPLES: Final = """
  hookcore replay step.capsule                     find the operator and the line that made a NaN
  hookcore replay step.capsule --above 1e4         find the first one above a magnitude
  hookcore replay step.capsule --json              print JSON, for programs
"""


def add_replay(commands: Commands) -> None:
    replay = add_command(
        commands,
        "replay",
        "Run the training step in a capsule again, and show the operator and the line that made a non-finite value. "
        "This runs code from the capsule: replay only those that you trust.",
        REPLAY_EXAMPLES,
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
