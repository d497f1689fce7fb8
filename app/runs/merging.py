"""Edits of several servers at once: only what one of them changed is put into what the others wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard


def merged(
    before: Mapping[str, Any], mine: Mapping[str, Any], newest: Mapping[str, Any], yields: bool = False
) -> dict[str, Any]:
    """Return the newest content with only the changes made here since `before`.

    `yields`: keep what others changed of the same things in the meantime, because their changes may be the later ones.
    """
    content = dict(newest)
    for name in {**before, **mine}:
        old, new, theirs = (each.get(name) for each in (before, mine, newest))
        if new == old and (name in mine) == (name in before):
            continue
        if isinstance(new, dict) and isinstance(theirs, dict):
            content[name] = merged(old if isinstance(old, dict) else {}, new, theirs, yields)
        elif _is_set(new) and _is_set(theirs):
            content[name] = _merged_sets(old if isinstance(old, list) else [], new, theirs)
        elif yields and (theirs != old or (name in newest) != (name in before)):
            continue
        elif name in mine:
            content[name] = new
        else:
            content.pop(name, None)
    return content


def _is_set(value: object) -> TypeGuard[list[Any]]:
    """Return whether a list is one of equals, such as tags. A list of lists is a history, whose order counts."""
    return isinstance(value, list) and not any(isinstance(each, list) for each in value)


def _merged_sets(old: list[Any], new: list[Any], theirs: list[Any]) -> list[Any]:
    kept = [each for each in theirs if each in new or each not in old]
    return kept + [each for each in new if each not in old and each not in kept]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both contents without what they have in common, for `merged`."""
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    for name in {**before, **after}:
        if isinstance(before.get(name), dict) and isinstance(after.get(name), dict):
            first, second = changes(before[name], after[name])
            if first or second:
                old[name], new[name] = first, second
        elif before.get(name) != after.get(name) or (name in before) != (name in after):
            old |= {name: before[name]} if name in before else {}
            new |= {name: after[name]} if name in after else {}
    return old, new
