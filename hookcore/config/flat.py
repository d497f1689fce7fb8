"""A configuration, flattened: names with dots, and values that JSON has. No object of the user makes it raise.

Everything is bounded, because a description of the run goes with each message. What is left out or shortened is
counted, so that readers know of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from hookcore.records import Value, text_of

MAX_VALUES: Final = 256
MAX_CHARACTERS: Final = 16_384  # of all names and values
MAX_KEY: Final = 120
MAX_VALUE: Final = 200
MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 32  # of a list
WHOLE: Final = 2**53  # the integers that JSON can represent
HIDDEN: Final = "(hidden)"
CUT: Final = "\u2026"
_EXAMPLE: Final = " Write, for example, config={'lr': 0.001}, or config=vars(options)."
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_SECRET: Final = re.compile(
    r"(^|[.])token$"  # not `pad_token`
    r"|(^|[._-])(secret|password|passwd|credentials?|((access|api|auth|hf|private|secret|wandb)[._-]?(key|token)))$",
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(r"://[^/\s@]+@")
_WORDS: Final[dict[str, Value]] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True, slots=True)
class Flat:
    """Values by name, and how many were left out or shortened."""

    values: Mapping[str, Value] = field(default_factory=dict)
    cut: int = 0


def flatten(given: object, left_out: int = 0) -> Flat:
    """Flatten a mapping, a namespace, or a dataclass: `{"model": {"width": 8}}` becomes `{"model.width": 8}`.

    `left_out`: how many values of it were left out before.
    """
    flattening = _Flattening()
    flattening.add("", given, 0)
    return Flat(flattening.values, flattening.cut + left_out)


def value_of_text(text: str) -> Value:
    """Return the value that a command-line string means: a number, a boolean, None, or the string itself."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for read in (int, float):
        try:
            return _plain(read(word))
        except ValueError:
            pass
    return text


def without_secrets(name: str, value: Value) -> Value:
    """Return a value, hidden if its name says that it is a secret, and addresses without their passwords."""
    if isinstance(value, str):
        return HIDDEN if _SECRET.search(name.lstrip("-")) else _LOGIN.sub(f"://{HIDDEN}@", value)
    return value


def read_config(given: object) -> Flat:
    """Read the setting `config`; reject values without names."""
    if given is None:
        return Flat()
    if isinstance(given, list | tuple | type | ModuleType) or callable(given):
        raise ValueError(_EXAMPLE)
    if _parts_of(given) is None:
        if not hasattr(given, "__dict__"):
            raise ValueError(_EXAMPLE)
        given = vars(given)
    return flatten(given)


def config_of_text(text: str) -> object:
    """Parse `lr=0.1,model.width=8`, or an object in JSON."""
    if text.startswith("{"):
        return json.loads(text)
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in parts):
        raise ValueError(text)
    return {name.strip(): value_of_text(value) for name, _, value in parts}


class _Flattening:
    """Collects values up to the limits."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.cut = 0
        self._room = MAX_CHARACTERS

    def add(self, name: str, value: object, depth: int) -> None:
        parts = _parts_of(value) if depth < MAX_DEPTH else None
        if parts is None:
            self._add_one(name, value)
            return
        keys, get = parts
        for place, key in enumerate(keys):
            if len(self.values) >= MAX_VALUES or self._room <= 0:
                self.cut += _rest_of(value, place)
                return
            try:
                inside = get(key)
            except Exception as error:  # such as an interpolation that leads nowhere
                inside = f"({type(error).__name__})"
            self.add(f"{name}.{_text_of(key)}" if name else _text_of(key), inside, depth + 1)

    def _add_one(self, name: str, value: object) -> None:
        flat = without_secrets(name, _leaf_of(value))
        is_long = isinstance(flat, str) and len(flat) > MAX_VALUE
        if isinstance(flat, str):
            flat = cut_text(flat, MAX_VALUE)
        weight = len(name) + (len(flat) if isinstance(flat, str) else 8)
        if not name or len(name) > MAX_KEY or weight > self._room or len(self.values) >= MAX_VALUES:
            self.cut += 1
            return
        self.cut += is_long
        self._room -= weight
        self.values[name] = flat


def cut_text(text: str, most: int) -> str:
    """Shorten a string at its end, and mark it as shortened."""
    return text if len(text) <= most else text[: most - 1] + CUT


def _rest_of(value: object, seen: int) -> int:
    """Return how many parts of a value were not read."""
    try:
        return max(1, len(value) - seen)  # type: ignore[arg-type]
    except Exception:
        return 1


def _parts_of(value: object) -> tuple[Iterable[Any], Callable[[Any], Any]] | None:
    """Return the keys of a value and how to read each one, or None if it is one value."""
    try:
        if isinstance(value, Mapping):
            return value.keys(), value.__getitem__
        if isinstance(value, argparse.Namespace | SimpleNamespace):
            return _parts_of(vars(value))
        if isinstance(value, type):
            return None
        if dataclasses.is_dataclass(value):
            return [each.name for each in dataclasses.fields(value)], lambda name: getattr(value, name)
        if isinstance(getattr(type(value), "model_fields", None), dict):  # pydantic
            return list(type(value).model_fields), lambda name: getattr(value, name)  # type: ignore[attr-defined]
        if isinstance(value, list | tuple) and any(_parts_of(each) for each in value[:MAX_ITEMS]):
            return range(len(value)), value.__getitem__
    except Exception:
        pass
    return None


def _leaf_of(value: object) -> Value:
    try:
        return _plain(value)
    except Exception:
        return f"({type(value).__name__})"  # its text can't be made


def _plain(value: object) -> Value:
    if isinstance(value, Enum):
        return text_of(value.name)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value[: MAX_VALUE + 1])
    if isinstance(value, Integral):
        number = int(value)
        return number if abs(number) <= WHOLE else text_of(str(number))
    if isinstance(value, Real):
        real = float(value)
        return real if math.isfinite(real) else str(real)
    if isinstance(value, list | tuple | set | frozenset):
        return _text_of_list(value)
    return _text_of(value)


def _text_of_list(values: list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]) -> str:
    shown = [_leaf_of(each) for each, _ in zip(values, range(MAX_ITEMS), strict=False)]
    texts = [f'"{each}"' if isinstance(each, str) else str(each) for each in shown]
    if isinstance(values, set | frozenset):
        texts.sort()  # their order differs from run to run
    more = f", {CUT} ({len(values):,} in all)" if len(values) > MAX_ITEMS else ""
    return f"[{', '.join(texts)}{more}]"


def _text_of(value: object) -> str:
    """Return a string for any object, the same one in each process."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return text_of(str(getattr(value, "__qualname__", type(value).__name__)))
    if isinstance(value, os.PathLike):
        return text_of(os.fsdecode(value))
    try:
        text = str(value)
    except Exception:
        return f"({type(value).__name__})"
    return text_of(_ADDRESS.sub("", text)[: MAX_VALUE + 1])
