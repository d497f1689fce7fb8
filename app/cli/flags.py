"""Flags that come from the tables of settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

from hookcore.config import SETTINGS, Settings
from hookcore.errors import ArgumentError

from ..settings import ServerSettings

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, told: str, examples: str) -> argparse.ArgumentParser:
    """A sub-command with its line in the help of all, and a help of its own that ends in examples."""
    parser = commands.add_parser(
        name,
        help=told[0].lower() + told[1:].partition(".")[0],
        description=told,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(advice=f"`hookcore {name} --help` lists what there is")
    return parser


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of a server."""
    for each in fields(ServerSettings):
        flag, text = "--" + each.name.replace("_", "-"), str(each.metadata["help"])
        shown = ",".join(each.default) if isinstance(each.default, tuple) else each.default
        text = _escaped(f"{text} (HOOKCORE_{each.name.upper()}; default: {shown if shown != '' else 'none'})")
        if isinstance(each.default, bool):
            parser.add_argument(flag, dest=each.name, action="store_true", default=None, help=text)
        else:
            # Read by the settings themselves, so that flags and variables allow the same and say the same.
            parser.add_argument(flag, dest=each.name, default=None, metavar=each.name.upper(), help=text)
    parser.add_argument(
        "--token-file", type=Path, help="a file that holds the token, so that no list of processes does"
    )


def server_settings_of(given: argparse.Namespace, environment: Mapping[str, str]) -> ServerSettings:
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


def add_watch_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of `hookcore.watch`."""
    group = parser.add_argument_group("what is watched, as in hookcore.watch()")
    for each in SETTINGS:
        flag, text = "--" + each.name.replace("_", "-"), f"{each.allowed} ({each.variable}; default: {each.default!r})"
        group.add_argument(flag, dest=f"watch_{each.name}", metavar=each.name.upper(), help=_escaped(text))


def watch_variables(given: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags as environment variables, or raise ArgumentError for an invalid value."""
    told = {each.variable: getattr(given, f"watch_{each.name}") for each in SETTINGS}
    variables = {name: text for name, text in told.items() if text is not None}
    Settings.of({**environment, **variables})
    return variables


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
