"""`serve` and `open`: servers that run until Ctrl+C."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hookcore.errors import ArgumentError

from ..settings import ServerSettings
from .flags import Commands, add_command, add_server_flags, server_settings_of

if TYPE_CHECKING:
    from ..runs import Runs

SERVE_EXAMPLES: Final = """
  hookcore serve                                   for this machine only, at http://127.0.0.1:8642/
  hookcore serve --host 0.0.0.0 --certfile box.pem --keyfile box.key
                                                   for other machines, too; prints a token and a login link
  hookcore serve --store clickhouse://hookcore@box:8123/hookcore --retain 30d
                                                   shows the runs that collectors insert into ClickHouse
  hookcore serve --keep runs --keep-limit 50GB     saves each run in this folder; `--keep none` saves none
  HOOKCORE_URL=http://127.0.0.1:8642 python train.py
                                                   sends a training to it
"""
OPEN_EXAMPLES: Final = """
  hookcore open runs                               all runs in a folder
  hookcore open runs/2026-05-01.hookcore           one run
  hookcore open runs/*.hookcore --port 0           several runs, on any free port
"""
OF_TRAINERS: Final = frozenset(  # settings for receiving runs
    ("lost_after_s", "keep", "keep_limit", "store", "retain", "notify", "rules_file", "dashboard")
)


def add(commands: Commands) -> None:
    serve = add_command(commands, "serve", "Receive runs from trainers and serve them, until Ctrl+C.", SERVE_EXAMPLES)
    serve.usage = "hookcore serve [flags]"
    add_server_flags(serve)
    serve.set_defaults(run=_serve)
    show = add_command(commands, "open", "Serve saved runs, until Ctrl+C.", OPEN_EXAMPLES)
    show.usage = "hookcore open [flags] RUN ..."
    show.add_argument("file", nargs="+", type=Path, metavar="RUN", help="saved run, or folder with runs")
    add_server_flags(show, {each.name for each in fields(ServerSettings)} - OF_TRAINERS)
    show.set_defaults(run=_open)


def _serve(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    from ..serving.server import run  # only a server needs it

    run(server_settings_of(given, environment), environment)
    return ""


def _open(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    for path in given.file:
        if not path.exists():
            raise ArgumentError(f"{str(path)!r} is not a file or folder: give the path of a saved run")
    from ..runs.growing import Growing
    from ..runs.saved import show_all
    from ..serving.server import run

    stopping = threading.Event()

    def fill(runs: Runs) -> None:
        for path in given.file:
            show_all(runs, path)
        Growing(runs).start(stopping)

    try:
        run(replace(server_settings_of(given, environment), dashboard=False, keep="", store=""), environment, fill)
    finally:
        stopping.set()
    return ""
