"""The table of all rules for docs/rules.md; `python -m hookcore_app.cli.rule_table` prints it."""

from __future__ import annotations

from typing import Final

from hookcore.findings import RULES, THRESHOLDS

HEAD: Final = ("rule", "in SageMaker Debugger", "severity", "thresholds: default (least to most)")


def as_markdown() -> str:
    """Render all rules with the thresholds that can be changed."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for rule in RULES.values():
        thresholds = "; ".join(
            f"`{each.name}` {each.default:g} ({each.least:g} to {each.most:g}): {each.help}"
            for each in THRESHOLDS.get(rule.name, ())
        )
        rows.append((f"`{rule.name}`", f"`{rule.known_as}`" if rule.known_as else "", rule.severity, thresholds))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(as_markdown(), end="")
