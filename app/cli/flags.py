"""Command-line flags that are generated from the tables of settings, and the run that a command is about."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hookcore.config import SETTINGS, Setting, Settings
from hookcore.delivery.dashboard.process import data_folder, find
from hookcore.errors import ArgumentError
from hookcore.reading import Client

from ..settings import HELP_LINK, SERVER, ServerSettings

if TYPE_CHECKING:
    from ..runs import Run

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
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
    add_flags(parser, [setting for setting in SERVER if not names or setting.name in names], defaults)
    parser.add_argument("--token-file", type=Path, help="file with the token, which keeps it out of process lists")


def add_flags(
    parser: argparse._ActionsContainer,
    settings: Iterable[Setting],
    defaults: Mapping[str, str] | None = None,
    prefix: str = "",
) -> None:
    """Add a flag for each of some settings. Its text is read like a variable's, with the same errors."""
    for setting in settings:
        meaning, allowed = HELP_LINK.sub(r"\1 (docs/\2)", setting.help), _QUOTED.sub(r"\1", setting.allowed)
        default = (defaults or {}).get(setting.name, setting.default_text) or ("none" if prefix else "")
        variable = f"{setting.variable}; default: {default}" if default else setting.variable
        text = f"{meaning} Allowed: {allowed} ({variable})".replace("None", "none").replace("%", "%%")
        how: dict[str, Any] = {"metavar": setting.name.upper()}
        if setting.default is False:
            how, text = {"action": "store_true"}, f"{meaning} ({setting.variable})"
        elif isinstance(setting.default, tuple) and not prefix:
            how, text = how | {"action": "append"}, f"{text}. Can be repeated"
        flag = f"--{setting.name.replace('_', '-')}"
        parser.add_argument(flag, dest=prefix + setting.name, default=None, help=text, **how)


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
    add_flags(group, SETTINGS, prefix="watch_")
    parser.set_defaults(watches=True)


def watch_variables(given: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags as environment variables, or raise ArgumentError for an invalid value."""
    texts = {setting.variable: getattr(given, f"watch_{setting.name}", None) for setting in SETTINGS}
    variables = {name: text for name, text in texts.items() if text is not None}
    Settings.of({**environment, **variables})
    return variables


# The run that a command is about: a saved one, or one of a server.

TIMEOUT_S: Final = 120.0
_NEITHER: Final = (
    "{!r} is not a file, folder, or address: give a saved run, or http://HOST:PORT; with an id or a name, use --run"
)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a run."""
    add_server_or_runs(parser)
    parser.add_argument("--run", dest="run_id", default=None, help="id or name of the run (default: the newest run)")


def add_server_or_runs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a server, or saved runs."""
    parser.add_argument(
        "source",
        nargs="?",
        default="",
        help="saved run, or address of a server (default: your own dashboard, or what it has saved)",
    )
    parser.add_argument("--token", default="", help="token of the server (default: HOOKCORE_TOKEN)")


def saved_run(given: argparse.Namespace) -> Run | None:
    """Return the saved run that the arguments name, or None if they name a server, or a folder of runs."""
    if not given.source or given.source.startswith(("http://", "https://")):
        return None
    path = Path(given.source)
    if not path.exists():
        raise ArgumentError(_NEITHER.format(str(path)))
    from ..runs import Runs
    from ..runs.saved import show
    from ..runs.shelf import is_run

    if path.is_dir() and not is_run(path):
        return None
    run = show(Runs(ServerSettings()), path)
    if given.run_id not in (None, run.id, run.name):
        raise ArgumentError(f"{str(path)!r} contains the run {run.id!r}, not {given.run_id!r}: omit --run")
    return run


@contextmanager
def run_of_client(given: argparse.Namespace) -> Iterator[tuple[Client, str]]:
    """Give a client as `client_of` does, and the id of the run."""
    from ..questions import id_of  # needs more than other commands

    with client_of(given) as client:
        yield client, id_of(client, given.run_id)


def _saved_by_dashboards() -> str:
    """Return the folder of what this user's dashboards have saved, if none runs; nothing if one does, or none has."""
    folder = data_folder() / "runs"
    if os.environ.get("HOOKCORE_URL") or not any(folder.glob("*.hookcore")) or find() is not None:
        return ""
    print(
        f"hookcore: no dashboard is running, so this is about the runs that it has saved in {folder}", file=sys.stderr
    )
    return str(folder)


@contextmanager
def client_of(given: argparse.Namespace) -> Iterator[Client]:
    """Give a client of the server that the arguments name, or of saved runs, about which this process answers."""
    source = given.source or _saved_by_dashboards()
    if not source or source.startswith(("http://", "https://")):
        with Client(source or None, given.token or None, timeout_s=TIMEOUT_S) as client:
            yield client
        return
    path = Path(source)
    if not path.exists():
        raise ArgumentError(_NEITHER.format(str(path)))
    from ..main import client_inside, create_app  # needs more than a request to a server
    from ..runs import Runs
    from ..runs.saved import show_all

    settings = ServerSettings(keep="")
    runs = Runs(settings)
    show_all(runs, path)
    app = create_app(runs, settings)
    try:
        yield client_inside(app)
    finally:
        app.state.explainer.close()
        app.state.keeper.close()
