"""`collect`: takes what trainers send, keeps it on disk, and sends it on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from ..settings import CollectorSettings
from .flags import Commands, add_command, add_flags, add_server_flags, server_settings_of

EXAMPLES: Final = """
  hookcore collect --to http://box:8642            for the trainings on this machine
  hookcore collect --to https://box:8642 --host 0.0.0.0 --spool /var/spool/hookcore --spool-limit 50GB
                                                   for those on other machines, too
  HOOKCORE_URL=http://127.0.0.1:8643 HOOKCORE_TOKEN=... python train.py
                                                   sends a training to it
"""
SETTINGS: Final = frozenset(
    ("host", "port", "token", "allowed_hosts", "certfile", "keyfile", "max_body", "receive_s", "max_connections")
)
PORT: Final = "8643"  # so that it fits next to a server on the same machine


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "collect",
        "Receive data from trainers, keep it on disk, and send it to a server, until Ctrl+C.",
        EXAMPLES,
    )
    add_flags(parser, fields(CollectorSettings))
    add_server_flags(parser, SETTINGS, {"port": PORT})
    parser.usage = "hookcore collect --to ADDRESS [flags]"
    parser.set_defaults(run=_collect)


def _collect(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    from ..collector.service import run  # only a collector needs it

    if given.port is None and not environment.get("HOOKCORE_PORT"):
        given.port = PORT
    run(server_settings_of(given, environment), CollectorSettings.of(vars(given), environment))
    return ""
