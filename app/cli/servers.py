"""`serve`, `open`, and `collect`: servers that run until Ctrl+C."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hookcore.errors import ArgumentError

from ..settings import CollectorSettings, ServerSettings
from .flags import Commands, add_command, add_flags, add_server_flags, server_settings_of

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
COLLECT_EXAMPLES: Final = """
  hookcore collect --to http://box:8642            for the trainings on this machine
  hookcore collect --to https://box:8642 --host 0.0.0.0 --spool /var/spool/hookcore --spool-limit 50GB
                                                   for those on other machines, too
  HOOKCORE_URL=http://127.0.0.1:8643 HOOKCORE_TOKEN=... python train.py
                                                   sends a training to it
"""
COLLECTOR_FLAGS: Final = frozenset(
    ("host", "port", "token", "allowed_hosts", "certfile", "keyfile", "max_body", "receive_s", "max_connections")
)
COLLECTOR_PORT: Final = "8643"  # so that it fits next to a server on the same machine


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
    collect = add_command(
        commands,
        "collect",
        "Receive data from trainers, keep it on disk, and send it to a server, until Ctrl+C.",
        COLLECT_EXAMPLES,
    )
    add_flags(collect, fields(CollectorSettings))
    collect.usage = "hookcore collect --to ADDRESS [flags]"
    add_server_flags(collect, COLLECTOR_FLAGS, {"port": COLLECTOR_PORT})
    collect.set_defaults(run=_collect)


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


def _collect(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    from ..collector.service import run  # only a collector needs it

    if given.port is None and not environment.get("HOOKCORE_PORT"):
        given.port = COLLECTOR_PORT
    run(server_settings_of(given, environment), CollectorSettings.of(vars(given), environment))
    return ""
