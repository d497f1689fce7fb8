"""What a user can set, in one table: the name, the default, what is allowed, and how a given value is read.

`Settings.of` reads the arguments of a call against the table; `python -m hookcore.config` prints it in Markdown.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, SupportsFloat, SupportsIndex, get_args

from hookcore.errors import ArgumentError
from hookcore.records import KINDS, Kind, Phase

Pattern = str | type
Attach = Literal["global", "module"]
Compiled = Literal["boundary", "inside"]

MIN_SKETCH_VALUES: Final = 1024
MIN_MEMORY_BYTES: Final = 2_000_000  # three quarters of it must be a store
MAX_BUDGET: Final = 10.0
_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def nearest(given: str, options: Iterable[str], limit: int = 3) -> list[str]:
    """Those of `options` that are spelled like `given`, the nearest first; case does not count."""
    by_lower: dict[str, str] = {}
    for option in options:
        by_lower.setdefault(option.lower(), option)
    return [by_lower[match] for match in difflib.get_close_matches(given.lower(), by_lower, n=limit, cutoff=0.6)]


def did_you_mean(given: str, options: Iterable[str]) -> str:
    """A sentence, led by a space, that names the nearest option; empty where none is near."""
    near = nearest(given, options, limit=1)
    return f" Did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `read` turns what a caller gave into what is kept, or raises ValueError with a hint."""

    name: str
    default: object  # as a caller would write it
    allowed: str
    help: str
    read: Callable[[object], object]

    def value_of(self, given: object) -> object:
        """What is kept for `given`; raises ArgumentError where it is not allowed."""
        try:
            return self.read(given)
        except (ValueError, TypeError) as error:
            message = f"{self.name}={_shown(given)} is not allowed: {self.name} is {self.allowed}.{error}"
            raise ArgumentError(message) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """What one watcher was told. Made by `Settings.of`, which holds the defaults and checks every value."""

    include: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...]
    kinds: frozenset[Kind]
    every: int
    budget: float | None
    memory: int
    attach: Attach
    compiled: Compiled
    phases: frozenset[Phase]
    calls: int
    sketch_values: int | None
    server: str | None

    @classmethod
    def of(cls, **arguments: object) -> Settings:
        """The settings of a call: `arguments` where given, else the defaults; a wrong one raises ArgumentError."""
        names = [setting.name for setting in SETTINGS]
        for name in arguments:
            if name not in names:
                raise ArgumentError(
                    f"{name!r} is not a setting: the settings are {', '.join(names)}.{did_you_mean(name, names)}"
                )
        values = {setting.name: setting.value_of(arguments.get(setting.name, setting.default)) for setting in SETTINGS}
        return cls(**values)  # type: ignore[arg-type]  # each reader returns its field's type; a test holds it


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _reject(hint: str = "") -> ValueError:
    return ValueError(f" {hint}" if hint else "")


def _as_items(given: object) -> list[object]:
    """A lone string or class stands for a list of one."""
    if isinstance(given, str | type):
        return [given]
    if not isinstance(given, Iterable):
        raise _reject("Give a list, a set or a tuple.")
    return list(given)


def _read_patterns(given: object) -> tuple[Pattern, ...]:
    patterns: list[Pattern] = []
    for item in [] if given is None else _as_items(given):
        if not isinstance(item, str | type):
            kind = type(item).__name__
            raise _reject(
                f"Of a module that you hold, give its path or its class; {_shown(item)} is an object ({kind})."
            )
        if isinstance(item, str) and not item.strip():
            raise _reject("An empty string is no pattern; the root itself is 'is:root'.")
        patterns.append(item)
    return tuple(patterns)


def _read_include(given: object) -> tuple[Pattern, ...]:
    patterns = _read_patterns(given)
    if given is not None and not patterns:
        raise _reject("An empty list would watch nothing; leave it out to watch every module.")
    return patterns


def _read_set(options: tuple[str, ...]) -> Callable[[object], frozenset[str]]:
    def read(given: object) -> frozenset[str]:
        items = _as_items(given)
        if not items:
            raise _reject("Name at least one.")
        return frozenset(_one_of(item, options) for item in items)

    return read


def _read_choice(options: tuple[str, ...]) -> Callable[[object], str]:
    return lambda given: _one_of(given, options)


def _one_of(given: object, options: tuple[str, ...]) -> str:
    if not isinstance(given, str):
        raise _reject()
    if given not in options:
        raise ValueError(did_you_mean(given, options))
    return given


def _read_integer(least: int) -> Callable[[object], int]:
    def read(given: object) -> int:
        # NumPy's integers have __index__ too.
        if isinstance(given, bool) or not isinstance(given, SupportsIndex):
            raise _reject()
        number = operator.index(given)
        if number < least:
            raise _reject()
        return number

    return read


def _read_sketch_values(given: object) -> int | None:
    return None if given is None else _read_integer(MIN_SKETCH_VALUES)(given)


def _read_budget(given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool | str):
        raise _reject("For five percent write 0.05.")
    if not isinstance(given, SupportsFloat | SupportsIndex):
        raise _reject()
    budget = float(given)
    if budget == 0:
        raise _reject("To stop capturing call watcher.pause().")
    if not (math.isfinite(budget) and 0 < budget <= MAX_BUDGET):
        raise _reject("It is a share of the step's time: for five percent write 0.05.")
    return budget


def _read_memory(given: object) -> int:
    size = bytes_of(given) if isinstance(given, str) else _read_integer(0)(given)
    if size < MIN_MEMORY_BYTES:
        raise _reject("That is too little to keep a run's history.")
    return size


def bytes_of(text: str) -> int:
    """The number of bytes that `text` says: "512MB" is decimal, "1.5GiB" binary, no unit means bytes; case is free."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _reject("Write a number and a unit.")
    number, unit = match[1], match[2]
    if unit.lower() not in _UNIT_BYTES:
        raise _reject(f"{unit!r} is no unit: use B, kB, MB, GB, TB or KiB, MiB, GiB, TiB.")
    return int(float(number) * _UNIT_BYTES[unit.lower()])


def _read_server(given: object) -> str | None:
    if given is None or given == "thread":
        return "thread" if given else None
    if isinstance(given, str) and "://" in given:
        raise _reject("Sending to another process or machine is not in this version; read watcher.store instead.")
    raise ValueError(did_you_mean(given, ["thread"]) if isinstance(given, str) else "")


def _listed(options: tuple[str, ...]) -> str:
    return ", ".join(map(repr, options))


_PHASES: Final = get_args(Phase)
_ATTACH: Final = get_args(Attach)
_COMPILED: Final = get_args(Compiled)
_PATTERNS_HELP: Final = (
    "A pattern is a glob on the dotted path in which `*` also crosses dots (`blocks.*.attn`), `re:` and a regular "
    "expression for the whole path (`re:.*drop.*`), `type:` and a class name or a glob on it (`type:Linear`; base "
    "classes count), `is:leaf` (no child modules), `is:root`, or a class (`nn.Linear`). It speaks of the modules it "
    "matches, not of those below them."
)

SETTINGS: Final = (
    Setting(
        "include",
        None,
        "a pattern or a list of patterns, or None for every module",
        f"The modules to watch. {_PATTERNS_HELP}",
        _read_include,
    ),
    Setting(
        "exclude",
        (),
        "a pattern or a list of patterns, or None",
        "The modules to leave out, of those that `include` names. The same patterns.",
        _read_patterns,
    ),
    Setting(
        "kinds",
        ("output", "output_grad", "param_grad"),
        f"one or more of {_listed(KINDS)}",
        "What is captured of each module: activations, gradients, parameters and their updates.",
        _read_set(KINDS),
    ),
    Setting(
        "every",
        1,
        "a whole number from 1 on",
        "Capture every n-th step. The others cost next to nothing.",
        _read_integer(1),
    ),
    Setting(
        "budget",
        0.05,
        f"a number above 0 and up to {MAX_BUDGET:g}, or None for no limit",
        "The share of a step's time that watching may cost, as measured in the run. Above it fewer steps are captured.",
        _read_budget,
    ),
    Setting(
        "memory",
        "512MB",
        f'a number of bytes or a text such as "512MB" or "1.5GiB", at least {MIN_MEMORY_BYTES // 10**6} MB',
        "The limit of the store: the newest steps are kept exactly, older ones merged.",
        _read_memory,
    ),
    Setting(
        "attach",
        "global",
        f"one of {_listed(_ATTACH)}",
        "`global` registers on the process and leaves the model untouched; `module` registers on the watched modules, "
        "for processes that run many others. Then the hooks are on the model: copies and pickles carry them.",
        _read_choice(_ATTACH),
    ),
    Setting(
        "compiled",
        "boundary",
        f"one of {_listed(_COMPILED)}",
        "`boundary` sees the output and its gradient of each compiled region and changes no bit; `inside` sees every "
        "module inside, at a higher cost and with results equal within rounding.",
        _read_choice(_COMPILED),
    ),
    Setting(
        "phases",
        ("train",),
        f"one or more of {_listed(_PHASES)}",
        "Whether calls with gradients, without them, or both are captured; the two are kept apart.",
        _read_set(_PHASES),
    ),
    Setting(
        "calls",
        8,
        "a whole number from 1 on",
        "How many calls of one module in a step are kept apart; later ones merge into the last.",
        _read_integer(1),
    ),
    Setting(
        "sketch_values",
        65536,
        f"a whole number from {MIN_SKETCH_VALUES} on, or None for every value",
        "How many values of a tensor go into its histogram; larger tensors are sampled. The other stats are over "
        "every value.",
        _read_sketch_values,
    ),
    Setting(
        "server",
        None,
        "None or 'thread'",
        "Where the frames go. Both keep them in `watcher.store`, in this process; more is to come.",
        _read_server,
    ),
)


def as_markdown() -> str:
    """The table of settings for the documentation."""
    lines = ["| setting | default | allowed | what it does |", "|---|---|---|---|"]
    lines += [f"| `{one.name}` | `{one.default!r}` | {one.allowed} | {one.help} |" for one in SETTINGS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
