"""The tables of docs/settings.md and docs/rules.md: `python -m tests.settings_tables settings`, or `rules`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hookcore.config import SETTINGS
from hookcore.findings import RULES, THRESHOLDS, Rule
from hookcore_app.settings import TABLES

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
SETTINGS_HEAD: Final = ("of", "`watch()`", "flag", "variable", "default", "allowed", "what it does")


RULES_HEAD: Final = ("rule", "in SageMaker Debugger", "severity", "thresholds: default (least to most)")


def _markdown(head: tuple[str, ...], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in cells)


def settings_table() -> str:
    """Render all settings of trainings, servers, and collectors, and the variables that are neither."""
    return _markdown(SETTINGS_HEAD, [*_of_trainings(), *_of_processes(), *_variables()])


def _of_trainings() -> Iterator[tuple[str, ...]]:
    for setting in SETTINGS:
        default = f"`{setting.default!r}`"
        yield (
            "training",
            f"`{setting.name}`",
            _flag(setting.name),
            f"`{setting.variable}`",
            default,
            setting.allowed,
            setting.help,
        )


def _of_processes() -> Iterator[tuple[str, ...]]:
    for of, settings in TABLES.items():
        for setting in settings:
            shown = f"`{default}`" if (default := setting.default_text) else ""
            yield of, "", _flag(setting.name), f"`{setting.variable}`", shown, setting.allowed, setting.help


def _variables() -> Iterator[tuple[str, ...]]:
    for name, text in VARIABLES.items():
        yield "training", "", "", f"`{name}`", "", "a string", text


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


def rules_table() -> str:
    """Render all rules with the thresholds that can be changed."""
    return _markdown(RULES_HEAD, map(_rule, RULES.values()))


def _rule(rule: Rule) -> tuple[str, ...]:
    thresholds = "; ".join(
        f"`{each.name}` {each.default:g} ({each.least:g} to {each.most:g}): {each.help}"
        for each in THRESHOLDS.get(rule.name, ())
    )
    return f"`{rule.name}`", f"`{rule.known_as}`" if rule.known_as else "", rule.severity, thresholds


if __name__ == "__main__":
    print({"settings": settings_table, "rules": rules_table}[sys.argv[1]](), end="")
