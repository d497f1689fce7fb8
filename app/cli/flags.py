"""Command-line flags that are generated from the tables of settings."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from hookcore.config import SETTINGS, Settings
from hookcore.errors import ArgumentError

from ..settings import ServerSettings, default_of

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_LINK: Final = re.compile(r"\[([^]]*)\]\(([^)#]*)[^)]*\)")  # as in docs/settings.md
_QUOTED: Final = re.compile(r"'(\w+)'")


def add_command(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Add a sub-command with a summary for the list of commands, and its own help that ends with examples."""
    parser = commands.add_parser(
        name,
        help=summary[0].lower() + re.split(r"[.:]", summary[1:])[0],
        description=textwrap.fill(summary, shutil.get_terminal_size().columns - 2),
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(advice=f"`hookcore {name} --help` lists all flags", command=parser, watches=False)
    return parser


def add_server_flags(
    parser: argparse.ArgumentParser, names: Collection[str] = (), defaults: Mapping[str, str] | None = None
) -> None:
    """Add a flag for each server setting, or for those with these names. A command may have other defaults."""
    add_flags(parser, [each for each in fields(ServerSettings) if not names or each.name in names], defaults)
    parser.add_argument("--token-file", type=Path, help="file with the token, which keeps it out of process lists")


def add_flags(
    parser: argparse.ArgumentParser, settings: Iterable[Field[Any]], defaults: Mapping[str, str] | None = None
) -> None:
    """Add a flag for each of some settings of a server or a collector."""
    for each in settings:
        flag, text = "--" + each.name.replace("_", "-"), str(each.metadata["help"])
        default = (defaults or {}).get(each.name) or default_of(each)
        text = _help(text, f"HOOKCORE_{each.name.upper()}", "" if isinstance(each.default, bool) else default)
        if isinstance(each.default, bool):
            parser.add_argument(flag, dest=each.name, action="store_true", default=None, help=text)
        elif isinstance(each.default, tuple):
            parser.add_argument(
                flag, dest=each.name, action="append", metavar=each.name.upper(), help=f"{text}. Can be repeated"
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
    group = parser.add_argument_group(
        "capture settings, as in hookcore.watch()",
        "Lists are separated by commas. Each setting is also an environment variable, named in parentheses.",
    )
    for each in SETTINGS:
        flag, default = "--" + each.name.replace("_", "-"), each.default
        shown = ",".join(default) if isinstance(default, tuple) else str(default)
        meaning, allowed = _LINK.sub(r"\1 (docs/\2)", each.help), _QUOTED.sub(r"\1", each.allowed)
        text = _help(f"{meaning} Allowed: {allowed}", each.variable, shown or "none").replace("None", "none")
        group.add_argument(flag, dest=f"watch_{each.name}", metavar=each.name.upper(), help=text)
    parser.set_defaults(watches=True)


def watch_variables(given: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags as environment variables, or raise ArgumentError for an invalid value."""
    texts = {each.variable: getattr(given, f"watch_{each.name}") for each in SETTINGS}
    variables = {name: text for name, text in texts.items() if text is not None}
    Settings.of({**environment, **variables})
    return variables


def _help(meaning: str, variable: str, default: str) -> str:
    """Return the help of a flag: what it means, its variable, and its default, if it has one."""
    text = f"{meaning} ({variable}; default: {default})" if default else f"{meaning} ({variable})"
    return text.replace("%", "%%")
