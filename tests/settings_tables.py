"""The tables of docs/settings.md, docs/rules.md, and docs/coming-from.md.

`python -m tests.settings_tables settings`, `rules`, or `names` prints one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
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
    "HOOKCORE_GPU_GRAPHS": '`1` lets the operators of `compiled="inside"` write on the device, also in each replay of '
    "a CUDA graph. It is off, because no GPU has run it yet.",
    "HOOKCORE_GPU_TOGETHER": "`1` lets one launch measure the small weights, gradients, and states that a hook of an "
    "optimizer reads on a GPU. It is off, because no GPU has run it yet.",
    "HOOKCORE_CLICKHOUSE_PASSWORD": "The password of the ClickHouse user, for a server and a collector, if it isn't in "
    "the address.",
}
SETTINGS_HEAD: Final = ("of", "`watch()`", "flag", "variable", "default", "allowed", "what it does")


RULES_HEAD: Final = ("rule", "in SageMaker Debugger", "severity", "thresholds: default (least to most)")
NAMES_HEAD: Final = ("in SageMaker Debugger", "rules of hookcore")
COOKBOOK: Final = Path(__file__).parents[1] / "docs" / "cookbook" / "README.md"


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
    pages = _recipes()
    return _markdown(RULES_HEAD, (_rule(rule, pages.get(rule.name, "")) for rule in RULES.values()))


def _recipes() -> dict[str, str]:
    """Return the page of the cookbook about each rule that has one."""
    rows = re.findall(r'^\| ".*\]\(([\w-]+\.md)\) \|(.*)\|$', COOKBOOK.read_text(), re.MULTILINE)
    return {rule: page for page, rules in rows for rule in re.findall(r"`([\w-]+)`", rules)}


def names_table() -> str:
    """Render the rules by their names in SageMaker Debugger."""
    names = sorted({rule.known_as for rule in RULES.values()} - {""})
    rules = (", ".join(f"`{rule.name}`" for rule in RULES.values() if rule.known_as == name) for name in names)
    return _markdown(NAMES_HEAD, zip((f"`{name}`" for name in names), rules, strict=True))


def _rule(rule: Rule, page: str) -> tuple[str, ...]:
    thresholds = "; ".join(
        f"`{each.name}` {each.default:g} ({each.least:g} to {each.most:g}): {each.help}"
        for each in THRESHOLDS.get(rule.name, ())
    )
    name = f"[`{rule.name}`](cookbook/{page})" if page else f"`{rule.name}`"
    return name, f"`{rule.known_as}`" if rule.known_as else "", rule.severity, thresholds


if __name__ == "__main__":
    print({"settings": settings_table, "rules": rules_table, "names": names_table}[sys.argv[1]](), end="")
