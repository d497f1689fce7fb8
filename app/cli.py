"""The command `hookcore`: serve, stop, status, open, link. It knows no torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from hookcore import dashboard
from hookcore.errors import ArgumentError, HookcoreError, ServerError

from .runs import Runs
from .settings import ServerSettings

WRONG: Final = 2
ASK_S: Final = 10.0
MOST_ANSWER: Final = 100_000
EXAMPLES: Final = """examples:
  hookcore serve                                   a server for this machine, at http://127.0.0.1:8642/
  hookcore serve --host 0.0.0.0 --certfile box.pem --keyfile box.key
                                                   one for other machines too; it prints a token and a login link
  HOOKCORE_URL=http://127.0.0.1:8642 python train.py
                                                   a training that sends to it
  hookcore status                                  where the dashboard of this user is
  hookcore stop                                    end it
  hookcore open runs/2026-05-01                    show a run that was kept
  hookcore link http://box:8642                    a link that logs one more browser in (token: HOOKCORE_TOKEN)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code: 0, or 2 with a sentence about what to change."""
    given = make_parser().parse_args(arguments)
    try:
        told = given.run(given, os.environ)
    except HookcoreError as error:
        sys.stderr.write(f"hookcore: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        return 130
    if told:
        sys.stdout.write(told + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """All commands, with their flags and help."""
    parser = argparse.ArgumentParser(
        prog="hookcore",
        description="Shows PyTorch training runs from inside, live.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve runs that trainers send", description="Serves until Ctrl+C.")
    add_flags(serve)
    serve.set_defaults(run=_serve)
    stop = commands.add_parser("stop", help="end the dashboard of this user")
    stop.set_defaults(run=_stop)
    status = commands.add_parser("status", help="say where the dashboard of this user is")
    status.set_defaults(run=_status)
    show = commands.add_parser("open", help="show runs that were kept", description="Serves kept runs until Ctrl+C.")
    show.add_argument("file", nargs="+", type=Path, help="a kept run: its file or folder")
    add_flags(show)
    show.set_defaults(run=_open)
    link = commands.add_parser("link", help="make a link that logs one browser in, once")
    link.add_argument("url", nargs="?", default="", help="the server; without it the dashboard of this user")
    link.add_argument("--token", default="", help="the server's token; else HOOKCORE_TOKEN")
    link.add_argument("--read-only", action="store_true", help="for somebody who may look and change nothing")
    link.set_defaults(run=_link)
    return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of a server."""
    for each in fields(ServerSettings):
        flag, text = "--" + each.name.replace("_", "-"), str(each.metadata["help"]).replace("%", "%%")
        shown = ",".join(each.default) if isinstance(each.default, tuple) else each.default
        text += f" (HOOKCORE_{each.name.upper()}; default: {shown if shown != '' else 'none'})"
        if isinstance(each.default, bool):
            parser.add_argument(flag, dest=each.name, action="store_true", default=None, help=text)
        else:
            # Read by the settings themselves, so that flags and variables allow the same and say the same.
            parser.add_argument(flag, dest=each.name, default=None, metavar=each.name.upper(), help=text)
    parser.add_argument(
        "--token-file", type=Path, help="a file that holds the token, so that no list of processes does"
    )


def settings_of(given: argparse.Namespace, environment: Mapping[str, str]) -> ServerSettings:
    """The settings from flags, variables and defaults."""
    values: dict[str, Any] = {each.name: getattr(given, each.name) for each in fields(ServerSettings)}
    if given.token_file is not None:
        if values["token"]:
            raise ArgumentError("token and token-file were both given: give one of them")
        try:
            values["token"] = given.token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"token-file={str(given.token_file)!r} cannot be read: {error}") from None
    return ServerSettings.of(values, environment)


def _serve(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    from .serve import run  # what only a server needs

    run(settings_of(given, environment), environment)
    return ""


def _stop(_given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    return dashboard.stop_dashboard(environment)


def _status(_given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    found = dashboard.status(environment)
    if not found.running:
        return "no dashboard is running"
    return f"the dashboard is at {found.url}/ (process {found.pid}); its log is {found.log}"


def _open(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    for path in given.file:
        if not path.exists():
            raise ArgumentError(f"{str(path)!r} is no file and no folder: give the path of a kept run")
    from .keep import show
    from .serve import run

    def fill(runs: Runs) -> None:
        for path in given.file:
            show(runs, path)

    run(replace(settings_of(given, environment), dashboard=False), environment, fill)
    return ""


def _link(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    url, token = given.url, given.token or environment.get("HOOKCORE_TOKEN", "")
    if not url:
        found = dashboard.find(environment)
        if found is None:
            raise ArgumentError("no dashboard is running: give the address of a server")
        url, token = found.url, found.token
    if not url.startswith(("http://", "https://")):
        raise ArgumentError(f"{url!r} is no address: it begins with http:// or https://")
    role = "reader" if given.read_only else "owner"
    request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/login-link?role={role}", method="POST")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            return str(json.loads(answer.read(MOST_ANSWER))["url"])
    except urllib.error.HTTPError as error:
        raise ServerError(_sentence_of(error)) from None
    except (OSError, ValueError, KeyError) as error:
        raise ServerError(f"{url} cannot be reached: {error}; is the server running?") from None


def _sentence_of(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            return str(json.loads(error.read(MOST_ANSWER))["error"])
        except (ValueError, KeyError, TypeError):
            return f"{error.url} answered {error.code}; is it a hookcore server?"


if __name__ == "__main__":
    sys.exit(main())
