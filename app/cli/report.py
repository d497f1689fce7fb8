"""`report`: a run as one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hookcore.errors import ArgumentError
from hookcore.reading import Client

from .flags import Commands, add_command

EXAMPLES: Final = """
  hookcore report                                  the newest run of your own dashboard
  hookcore report http://box:8642 --run run-1      a run of a server (token: HOOKCORE_TOKEN)
  hookcore report runs/x.hookcore -o report.html   a saved run
"""
TIMEOUT_S: Final = 120.0


def add(commands: Commands) -> None:
    told = "Write a report of a run: one HTML file of at most 10 MB that works offline."
    parser = add_command(commands, "report", told, EXAMPLES)
    parser.add_argument(
        "source", nargs="?", default="", help="saved run, or address of a server (default: your own dashboard)"
    )
    parser.add_argument("-o", "--output", default="", help="output file (default: hookcore-RUN.html; - for stdout)")
    parser.add_argument("--run", dest="run_id", default=None, help="id of the run (default: the newest run)")
    parser.add_argument("--token", default="", help="token of the server (default: HOOKCORE_TOKEN)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=_report)


def _report(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if given.source and not given.source.startswith(("http://", "https://")):
        run_id, content = _of_file(Path(given.source), given.run_id)
    else:
        run_id, content = _of_server(given.source, given.token, given.run_id)
    if given.output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return ""
    path = Path(given.output or f"hookcore-{run_id}.html")
    _write(path, content, given.force)
    return f"wrote the report of {run_id} to {path} ({len(content) / 1e6:.1f} MB)"


def _of_file(path: Path, run_id: str | None) -> tuple[str, bytes]:
    if not path.exists():
        raise ArgumentError(f"{str(path)!r} is not a file, folder, or address: give a saved run, or http://HOST:PORT")
    from ..report import report_of
    from ..runs import Runs
    from ..runs.saved import show
    from ..settings import ServerSettings

    run = show(Runs(ServerSettings()), path)
    if run_id not in (None, run.id):
        raise ArgumentError(f"{str(path)!r} contains the run {run.id!r}, not {run_id!r}: omit --run")
    return run.id, report_of(run)


def _of_server(url: str, token: str, run_id: str | None) -> tuple[str, bytes]:
    with Client(url or None, token or None, timeout_s=TIMEOUT_S) as client:
        if run_id is None:
            newest = next(iter(client.runs()), None)
            if newest is None:
                raise ArgumentError(f"the server at {client.url} has no runs yet: start a training first")
            run_id = newest.id
        return run_id, client.report(run_id)


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
