"""The run that a command is about: a saved one, or one of a server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hookcore.errors import ArgumentError
from hookcore.reading import Client

if TYPE_CHECKING:
    from ..runs import Run

TIMEOUT_S: Final = 120.0


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a run."""
    parser.add_argument(
        "source", nargs="?", default="", help="saved run, or address of a server (default: your own dashboard)"
    )
    parser.add_argument("--run", dest="run_id", default=None, help="id or name of the run (default: the newest run)")
    parser.add_argument("--token", default="", help="token of the server (default: HOOKCORE_TOKEN)")


def saved_run(given: argparse.Namespace) -> Run | None:
    """Return the saved run that the arguments name, or None if they name a server."""
    if not given.source or given.source.startswith(("http://", "https://")):
        return None
    path = Path(given.source)
    if not path.exists():
        raise ArgumentError(f"{str(path)!r} is not a file, folder, or address: give a saved run, or http://HOST:PORT")
    from ..runs import Runs
    from ..runs.saved import show
    from ..settings import ServerSettings

    run = show(Runs(ServerSettings()), path)
    if given.run_id not in (None, run.id, run.name):
        raise ArgumentError(f"{str(path)!r} contains the run {run.id!r}, not {given.run_id!r}: omit --run")
    return run


@contextmanager
def run_of_server(given: argparse.Namespace) -> Iterator[tuple[Client, str]]:
    """Give a client of the server that the arguments name, and the id of the run."""
    with Client(given.source or None, given.token or None, timeout_s=TIMEOUT_S) as client:
        yield client, _id_of(client, given.run_id)


def _id_of(client: Client, wanted: str | None) -> str:
    """Return the id of the run with this id or name; without either, of the newest run."""
    runs = client.runs()
    if not wanted:
        if not runs:
            raise ArgumentError(f"the server at {client.url} has no runs yet: start a training first")
        return runs[0].id
    named = [each.id for each in runs if each.name == wanted]
    if len(named) > 1 and all(each.id != wanted for each in runs):
        raise ArgumentError(
            f"{len(named)} runs have the name {wanted!r}: give the id of one, newest first: {', '.join(named[:5])}"
        )
    # Another id may belong to a run that isn't listed, so the server decides.
    return named[0] if len(named) == 1 else wanted
