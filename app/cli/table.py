"""The table of all settings for docs/settings.md; `python -m hookcore_app.cli.table` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from hookcore.config import SETTINGS

from ..settings import TABLES, allowed_of, default_of

# Variables without a flag or an argument. The code that needs one reads it by name.
VARIABLES: Final = {
    "HOOKCORE_URL": "Alias of `HOOKCORE_SERVER`: the address of the server that a training sends to.",
    "HOOKCORE_HOME": "The private folder with your saved runs and the address of your dashboard. By default, the "
    "address is in `~/.local/state/hookcore/MACHINE`, and the runs are in `~/.local/share/hookcore`.",
    "XDG_DATA_HOME": "The parent folder of `hookcore/runs`, if `HOOKCORE_HOME` is not set.",
    "HOOKCORE_CA_FILE": "File with certificate authorities (PEM). A training, a client, and `hookcore link` trust them "
    "for `https` servers; a server and a collector trust them for ClickHouse.",
    "HOOKCORE_CLICKHOUSE_PASSWORD": "The password of the ClickHouse user, for a server and a collector, if it isn't in "
    "the address.",
}
HEAD: Final = ("of", "`watch()`", "flag", "variable", "default", "allowed", "what it does")


def as_markdown() -> str:
    """Render all settings of trainings, servers, and collectors, and the variables that are neither."""
    rows = [HEAD, ("---",) * len(HEAD), *_of_trainings(), *_of_processes(), *_variables()]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _of_trainings() -> Iterator[tuple[str, ...]]:
    for each in SETTINGS:
        default = f"`{each.default!r}`"
        yield "training", f"`{each.name}`", _flag(each.name), f"`{each.variable}`", default, each.allowed, each.help


def _of_processes() -> Iterator[tuple[str, ...]]:
    for of, settings in TABLES.items():
        for each in fields(settings):
            shown = f"`{default}`" if (default := default_of(each)) else ""
            text, variable = str(each.metadata["help"]), f"`HOOKCORE_{each.name.upper()}`"
            sentence = f"{text[0].upper()}{text[1:]}."
            yield of, "", _flag(each.name), variable, shown, allowed_of(each.name, each.default), sentence


def _variables() -> Iterator[tuple[str, ...]]:
    for name, text in VARIABLES.items():
        yield "training", "", "", f"`{name}`", "", "a string", text


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


if __name__ == "__main__":
    print(as_markdown(), end="")
