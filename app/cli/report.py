"""`report`: a run as one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hookcore.errors import ArgumentError

from .flags import Commands, add_command
from .source import add_source, run_of_server, saved_run

EXAMPLES: Final = """
  hookcore report                                  the newest run of your own dashboard
  hookcore report http://box:8642 --run run-1      a run of a server (token: HOOKCORE_TOKEN)
  hookcore report runs/x.hookcore -o report.html   a saved run
"""


def add(commands: Commands) -> None:
    about = "Write a report of a run: one HTML file of at most 10 MB that works offline."
    parser = add_command(commands, "report", about, EXAMPLES)
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
        from ..pages.report import View, report_of

        return run.id, report_of(run, View(given.first, given.last, given.at))
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
