"""The table of all settings, for docs/settings.md: `python -m hookcore_app.cli.table` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from hookcore.config import SETTINGS

from ..settings import ServerSettings, allowed_of

# Read by name where they are needed: variables without a flag or an argument.
VARIABLES: Final = {
    "HOOKCORE_URL": "Another word for `HOOKCORE_SERVER`: the address of the server that a training sends to.",
    "HOOKCORE_HOME": "The private folder by which the dashboard of this user is found, and where runs are kept. If "
    "it is not set: `~/.local/state/hookcore/` and the name of the machine, and `~/.local/share/hookcore` for runs.",
    "XDG_DATA_HOME": "The folder in which `hookcore/runs` is, if `HOOKCORE_HOME` is not set.",
    "HOOKCORE_CA_FILE": "Certificates, in PEM, by which a training, a client and `hookcore link` trust a server with "
    "`https`.",
}
HEAD: Final = ("of", "`watch()`", "flag", "variable", "default", "allowed", "what it does")


def as_markdown() -> str:
    """Every setting, of a training and of a server, and the variables that are neither's argument."""
    rows = [HEAD, ("---",) * len(HEAD), *_of_trainings(), *_of_servers(), *_variables()]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _of_trainings() -> Iterator[tuple[str, ...]]:
    for each in SETTINGS:
        default = f"`{each.default!r}`"
        yield "training", f"`{each.name}`", _flag(each.name), f"`{each.variable}`", default, each.allowed, each.help


def _of_servers() -> Iterator[tuple[str, ...]]:
    for each in fields(ServerSettings):
        default = ",".join(each.default) if isinstance(each.default, tuple) else each.default
        shown = "" if default == "" else f"`{int(default) if isinstance(default, bool) else default}`"
        text = str(each.metadata["help"])
        told = f"{text[0].upper()}{text[1:]}."
        yield "server", "", _flag(each.name), f"`HOOKCORE_{each.name.upper()}`", shown, allowed_of(each.name), told


def _variables() -> Iterator[tuple[str, ...]]:
    for name, text in VARIABLES.items():
        yield "training", "", "", f"`{name}`", "", "a text", text


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


if __name__ == "__main__":
    print(as_markdown(), end="")
