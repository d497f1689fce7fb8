"""A setting, and readers of its values: each takes an argument and returns the stored value, or raises."""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, SupportsFloat, SupportsIndex
from urllib.parse import urlsplit

from hookcore.errors import ArgumentError, shown
from hookcore.records import text_of

# Readers of setting values: each takes an argument and returns the stored value, or raises ValueError with a hint.

Pattern = str | type

MIN_SKETCH_VALUES: Final = 1024
MIN_MEMORY_BYTES: Final = 2_000_000  # the store must get three quarters of it
MAX_ALLOWANCE_S: Final = 60.0
MAX_BUDGET: Final = 10.0
AUTO: Final = "auto"
NO_FOLDER: Final = "none"  # sent by a trainer so that the server doesn't save its run
MAX_NAME: Final = 200  # characters of a run's name
MAX_TAGS: Final = 20
MAX_TAG: Final = 50  # characters
MAX_WORDS: Final = 5000  # characters of notes
BRIDGES: Final = ("tensorboard", "wandb", "mlflow")
_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_ADDRESSES: Final = re.compile(r"[\s,]+(?=[A-Za-z][A-Za-z0-9]*://)")  # an address may contain commas
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def nearest(given: str, options: Iterable[str], limit: int = 3) -> list[str]:
    """Return the options that are spelled like `given`, nearest first, ignoring case."""
    by_lower: dict[str, str] = {}
    for option in options:
        by_lower.setdefault(option.lower(), option)
    return [by_lower[match] for match in difflib.get_close_matches(given.lower(), by_lower, n=limit, cutoff=0.6)]


def did_you_mean(given: str, options: Iterable[str]) -> str:
    """Return a sentence, with a leading space, that names the nearest option, or an empty string."""
    near = nearest(given, options, limit=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _reject(hint: str = "") -> ValueError:
    return ValueError(f" {hint}" if hint else "")


def _as_items(given: object) -> list[object]:
    """Return the items of a list; a single string or class counts as a list of one."""
    if isinstance(given, str | type):
        return [given]
    if not isinstance(given, Iterable):
        raise _reject("Use a list, a set, or a tuple.")
    return list(given)


def read_patterns(given: object) -> tuple[Pattern, ...]:
    """Read one pattern, several, or none."""
    patterns: list[Pattern] = []
    for item in [] if given is None else _as_items(given):
        if not isinstance(item, str | type):
            kind = type(item).__name__
            raise _reject(f"For a module object, give its path or its class; {shown(item)} is an object ({kind}).")
        if isinstance(item, str) and not item.strip():
            raise _reject("An empty string is not a pattern; use 'is:root' for the root module.")
        patterns.append(item)
    return tuple(patterns)


def read_include(given: object) -> tuple[Pattern, ...]:
    """Read patterns; reject an empty list."""
    patterns = read_patterns(given)
    if given is not None and not patterns:
        raise _reject("An empty list would watch nothing; omit `include` to watch every module.")
    return patterns


def read_set(options: tuple[str, ...]) -> Callable[[object], frozenset[str]]:
    """Return a reader for one or more of `options`."""

    def read(given: object) -> frozenset[str]:
        items = _as_items(given)
        if not items:
            raise _reject("Name at least one.")
        return frozenset(_one_of(item, options) for item in items)

    return read


def read_choice(options: tuple[str, ...]) -> Callable[[object], str]:
    """Return a reader for one of `options`."""
    return lambda given: _one_of(given, options)


def _one_of(given: object, options: tuple[str, ...]) -> str:
    if not isinstance(given, str):
        raise _reject()
    if given not in options:
        raise ValueError(did_you_mean(given, options))
    return given


def read_integer(least: int) -> Callable[[object], int]:
    """Return a reader for integers of `least` or more."""

    def read(given: object) -> int:
        # NumPy integers have __index__ too.
        if isinstance(given, bool) or not isinstance(given, SupportsIndex):
            raise _reject()
        number = operator.index(given)
        if number < least:
            raise _reject()
        return number

    return read


def read_sketches(given: object) -> int | str:
    """Read the number of captured steps from one with histograms to the next, or "auto"."""
    if isinstance(given, str):
        return _one_of(given, (AUTO,))
    return read_integer(1)(given)


def read_number(least: float, most: float = math.inf, hint: str = "") -> Callable[[object], float]:
    """Return a reader for numbers from `least` to `most`."""

    def read(given: object) -> float:
        if isinstance(given, bool | str) or not isinstance(given, SupportsFloat | SupportsIndex):
            raise _reject()
        if not least <= float(given) <= most:
            raise _reject(hint)
        return float(given)

    return read


def optional(read: Callable[[object], object]) -> Callable[[object], object]:
    """Return a reader that also takes None, and keeps it."""
    return lambda given: None if given is None else read(given)


def read_budget(given: object) -> float:
    """Read a share of the step's time."""
    if isinstance(given, bool | str):
        raise _reject("For five percent, write 0.05.")
    if not isinstance(given, SupportsFloat | SupportsIndex):
        raise _reject()
    budget = float(given)
    if budget == 0:
        raise _reject("To stop capturing, call watcher.pause().")
    if not (math.isfinite(budget) and 0 < budget <= MAX_BUDGET):
        raise _reject("It is a share of the step's time: for five percent, write 0.05.")
    return budget


def read_size(given: object) -> int:
    """Read a size in bytes."""
    return bytes_of(given) if isinstance(given, str) else read_integer(0)(given)


def read_memory(given: object) -> int:
    """Read the size of a run's history."""
    size = read_size(given)
    if size < MIN_MEMORY_BYTES:
        raise _reject("A run's history needs more than that.")
    return size


def bytes_of(text: str) -> int:
    """Parse a size: "512MB" is decimal, "1.5GiB" is binary, no unit means bytes. Case is ignored."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _reject("Write a number and a unit.")
    number, unit = match[1], match[2]
    if unit.lower() not in _UNIT_BYTES:
        raise _reject(f"Unknown unit {unit!r}: use B, kB, MB, GB, TB, KiB, MiB, GiB, or TiB.")
    return int(float(number) * _UNIT_BYTES[unit.lower()])


def read_server(given: object) -> str:
    """Read a destination for frames: a keyword, or an address (returned without a trailing slash)."""
    if not isinstance(given, str):
        raise _reject()
    if given in ("auto", "thread"):
        return given
    if "://" not in given:
        raise ValueError(did_you_mean(given, ["auto", "thread"]))
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise _reject("An address looks like https://box:8642.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _reject("An address must not contain a password or a query; set the token in HOOKCORE_TOKEN.")
    return given.rstrip("/")


def read_keep(given: object) -> str:
    """Read a folder as an absolute path; "auto" stays as it is."""
    if given == AUTO:
        return AUTO
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise _reject()
    try:
        return str(Path(os.fsdecode(given)).expanduser().absolute())
    except (RuntimeError, OSError) as error:  # no home folder, or the current one was removed
        raise _reject(f"{error}: give an absolute path.") from None


def read_bridge(given: object) -> str:
    """Read TOOL:TARGET."""
    if not isinstance(given, str):
        raise _reject()
    tool, colon, target = given.partition(":")
    if tool not in BRIDGES:
        raise ValueError(did_you_mean(tool, BRIDGES))
    if not colon or not target.strip():
        raise _reject(f"Add a target: {tool}:{'runs/x' if tool == 'tensorboard' else 'my-project'}.")
    return given


def read_notify(given: object) -> tuple[str, ...]:
    """Read one address of a notification service, several, or none."""
    items = [] if given is None else _as_items(given)
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise _reject("An address looks like slack://TOKEN_A/TOKEN_B/TOKEN_C.")
    return tuple(map(str, items))


def addresses_of(text: str) -> list[str]:
    """Parse addresses that are separated by spaces or commas."""
    return list(filter(None, _ADDRESSES.split(text.strip())))


def read_name(given: object) -> str:
    """Read the name of a run; the default is the script's name."""
    if given is None:
        return _name_of_the_script()
    if not isinstance(given, str) or not given.strip():
        raise _reject()
    if len(given) > MAX_NAME:
        raise _reject(f"This name has {len(given)}.")
    return given


def read_tags(given: object) -> tuple[str, ...]:
    """Read one tag, several, or none; each counts once."""
    items = [] if given is None else _as_items(given)
    tags = tuple(dict.fromkeys(text_of(str(item).strip()) for item in items))
    if len(tags) > MAX_TAGS:
        raise _reject(f"These are {len(tags)}.")
    for tag in tags:
        if not 0 < len(tag) <= MAX_TAG:
            raise _reject(f"The tag {shown(tag)} has {len(tag)} characters.")
    return tags


def read_text(most: int) -> Callable[[object], str]:
    """Return a reader for a text of at most `most` characters; None is an empty one."""

    def read(given: object) -> str:
        if given is None:
            return ""
        if not isinstance(given, str):
            raise _reject()
        text = text_of(given)
        if len(text) > most:
            raise _reject(f"This one has {len(text)}.")
        return text

    return read


def _name_of_the_script() -> str:
    script = Path(sys.argv[0] if sys.argv else "")
    name = script.parent.name if script.stem == "__main__" else script.stem
    return name[:MAX_NAME] if name and not name.startswith("-") else "python"


def int_or_auto(text: str) -> int | str:
    """Parse the text of a variable as a number, unless it is "auto"."""
    return AUTO if text == AUTO else int(text)


def or_none(parse: Callable[[str], object] = str) -> Callable[[str], object]:
    """Return a function that parses the text of a variable, with "none" as None."""
    return lambda text: None if text.lower() == "none" else parse(text)


def items_of(text: str) -> list[str]:
    """Parse a comma-separated list."""
    return [each.strip() for each in text.split(",") if each.strip()]


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table. `read` turns an argument into the stored value, or raises ValueError with a hint."""

    name: str
    default: object  # as a caller writes it
    allowed: str
    help: str
    read: Callable[[object], object]
    from_text: Callable[[str], object] = str  # turns the text of a variable into an argument
    live: Literal["cadence", "hooks", "probes"] | None = None  # what a change in a running training replaces
    secret: bool = False  # nothing shows its value
    alias: str = ""  # another variable
    of_run: bool = False  # describes the run, not how it is watched

    @property
    def variable(self) -> str:
        """The environment variable that is used if the argument is missing."""
        return f"HOOKCORE_{self.name.upper()}"

    @property
    def default_text(self) -> str:
        """The default as a flag or a variable gives it."""
        default = self.default
        if isinstance(default, tuple):
            return ",".join(default)
        return f"{default:g}" if isinstance(default, bool | float) else str(default)

    def value_of(self, given: object) -> object:
        """Return the stored value for an argument, or raise ArgumentError."""
        return self._read(self.name, given)

    def value_in(self, variables: Mapping[str, str]) -> object:
        """Return the stored value for the setting's variable, or for its alias, or the default."""
        for variable in filter(None, (self.variable, self.alias)):
            text = variables.get(variable, "")
            if text.strip():
                return self.value_of_text(variable, text)
        return self.value_of(self.default)

    def value_of_text(self, variable: str, text: str) -> object:
        """Return the stored value for the text of a variable, or raise ArgumentError."""
        try:
            given = self.from_text(text.strip())
        except ValueError:
            given = text  # `read` rejects it with a hint
        return self._read(variable, given)

    def _read(self, source: str, given: object) -> object:
        try:
            return self.read(given)
        except (ValueError, TypeError) as error:
            what = "..." if self.secret else shown(given)
            message = f"{source}={what} is invalid: {self.name} must be {self.allowed}.{error}"
            raise ArgumentError(message) from None


def setting(*row: Any, filled: bool = False, **more: Any) -> Any:
    """Return a field for a class of settings, with its row of the table. The row's name is that of the field.

    `filled`: the class can be made without it, and then has the row's default.
    """
    made = Setting("", *row, **more)
    default = made.value_of(made.default) if filled else MISSING
    return field(default=default, metadata={"setting": made}, repr=not made.secret)


def settings_in(table: type) -> tuple[Setting, ...]:
    """Return the rows of a class of settings."""
    return tuple(replace(each.metadata["setting"], name=each.name) for each in fields(table))


# The setting `rules`: thresholds of rules, rules that are off, and functions that are rules.

OwnRule = Callable[..., Any]
RulesGiven = Mapping[str, Mapping[str, float] | bool | None] | OwnRule | Iterable[Any] | None

_EXAMPLE: Final = " Write, for example, {'loss-spike': {'factor': 20}, 'dead-relu': False}."
_WORDS: Final = {"off": False, "on": True}


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The value of the setting: thresholds or False by rule, whose names the rules check, and functions."""

    thresholds: Mapping[str, Any] = field(default_factory=dict)
    functions: tuple[OwnRule, ...] = ()


def read_rules(given: object) -> GivenRules:
    """Read a mapping, a function, or several of them."""
    items: list[object] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    thresholds: dict[str, Any] = {}
    functions: list[OwnRule] = []
    for item in items:
        if isinstance(item, Mapping):
            for name, what in item.items():
                if not isinstance(name, str) or not (what is None or isinstance(what, bool | Mapping)):
                    raise ValueError(_EXAMPLE)
                thresholds[name] = dict(what) if isinstance(what, Mapping) else what
        elif callable(item) and not isinstance(item, type):
            functions.append(item)
        else:
            raise ValueError(_EXAMPLE)
    return GivenRules(thresholds, tuple(functions))


def rules_of_text(text: str) -> object:
    """Parse `spike.factor=20,dead=off`."""
    found: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        rule, dot, threshold = name.strip().partition(".")
        if dot:
            found[rule] = {**(found[rule] if isinstance(found.get(rule), dict) else {}), threshold: float(value)}
        elif value.strip().lower() in _WORDS:
            found[rule] = _WORDS[value.strip().lower()]
        else:
            raise ValueError(part)
    return found
