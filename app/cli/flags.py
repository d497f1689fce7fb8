"""Command-line flags that are generated from the tables of settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeAlias

from hookcore.config import SETTINGS, Settings
from hookcore.errors import ArgumentError

from ..settings import ServerSettings

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Add a sub-command with a summary for the list of commands, and its own help that ends with examples."""
    parser = commands.add_parser(
        name,
        help=summary[0].lower() + summary[1:].partition(".")[0],
        description=summary,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(advice=f"`hookcore {name} --help` lists all flags", command=parser)
    return parser


def add_server_flags(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Add a flag for each server setting, or for those with these names."""
    add_flags(parser, [each for each in fields(ServerSettings) if not names or each.name in names])
    parser.add_argument("--token-file", type=Path, help="file with the token, which keeps it out of process lists")


def add_flags(parser: argparse.ArgumentParser, settings: Iterable[Field[Any]]) -> None:
    """Add a flag for each of some settings of a server or a collector."""
    for each in settings:
        flag, text = "--" + each.name.replace("_", "-"), str(each.metadata["help"])
        shown = ",".join(each.default) if isinstance(each.default, tuple) else each.default
        text = _escaped(f"{text} (HOOKCORE_{each.name.upper()}; default: {shown if shown != '' else 'none'})")
        if isinstance(each.default, bool):
            parser.add_argument(flag, dest=each.name, action="store_true", default=None, help=text)
        elif isinstance(each.default, tuple):
            parser.add_argument(
                flag, dest=each.name, action="append", metavar=each.name.upper(), help=f"{text}; can be repeated"
            )
        else:
            # The settings read the text, so that flags and variables allow the same values and give the same errors.
            parser.add_argument(flag, dest=each.name, default=None, metavar=each.name.upper(), help=text)


def server_settings_of(given: argparse.Namespace, environment: Mapping[str, str]) -> ServerSettings:
    """Return the settings from flags, variables, and defaults."""
    values = dict(vars(given))
    if given.token_file is not None:
        if values["token"]:
            raise ArgumentError("token and token-file are both set: use one of them")
        try:
            values["token"] = given.token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"token-file={str(given.token_file)!r} can't be read: {error}") from None
    return ServerSettings.of(values, environment)


def add_watch_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting of `hookcore.watch`."""
    group = parser.add_argument_group("capture settings, as in hookcore.watch()")
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
