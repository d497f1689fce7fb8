"""The settings of one watcher, as a caller writes them and as they are kept; and the variables that are no settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict

from hookcore.config.flat import HIDDEN, Flat
from hookcore.config.readers import GivenRules, Pattern, RulesGiven, Setting, did_you_mean
from hookcore.config.table import SETTINGS, Attach, Capsule, Compiled, Explain
from hookcore.errors import ArgumentError
from hookcore.records import Kind, Phase


class _NotGiven:
    """The default of an argument that is replaced by an environment variable or the default of the table."""

    def __repr__(self) -> str:
        return "<not given>"


ConfigGiven: TypeAlias = object  # a mapping, a namespace, a dataclass, or None
NOT_GIVEN: Final[Any] = _NotGiven()  # Any, so that a parameter of any type can have it as its default


class WatchSettings(TypedDict, total=False):
    """The keyword arguments of `hookcore.watch`, for functions that pass them on: `**settings: Unpack[...]`."""

    include: Pattern | Iterable[Pattern] | None
    exclude: Pattern | Iterable[Pattern] | None
    kinds: Kind | Iterable[Kind]
    channels: Pattern | Iterable[Pattern] | None
    every: int
    budget: float | None
    allowance: float
    memory: int | str
    attach: Attach
    compiled: Compiled
    phases: Phase | Iterable[Phase]
    calls: int
    sketch_values: int | None
    server: str | None
    keep: str | os.PathLike[str] | None
    capsule: Capsule
    capsule_size: int | str
    explain: Explain
    bridge: str | None
    notify: str | Iterable[str] | None
    rules: RulesGiven
    name: str | None
    config: ConfigGiven
    tags: str | Iterable[str] | None
    group: str | None
    notes: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one watcher. `Settings.of` checks every value and fills in the defaults."""

    include: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...]
    kinds: frozenset[Kind]
    channels: tuple[Pattern, ...]
    every: int
    budget: float | None
    allowance: float
    memory: int
    attach: Attach
    compiled: Compiled
    phases: frozenset[Phase]
    calls: int
    sketch_values: int | None
    server: str | None
    keep: str | None
    capsule: Capsule
    capsule_size: int
    explain: Explain
    bridge: str | None
    notify: tuple[str, ...] = field(repr=False)
    rules: GivenRules
    name: str
    config: Flat
    tags: tuple[str, ...]
    group: str
    notes: str

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None, /, **arguments: object) -> Settings:
        """Return the settings of a call: its arguments, else the variables, else the defaults.

        An argument that is NOT_GIVEN counts as missing. `environment` replaces the variables of the process. A wrong
        value raises ArgumentError.
        """
        names = [setting.name for setting in SETTINGS]
        for name in arguments:
            if name not in names:
                raise ArgumentError(
                    f"{name!r} is not a setting: the settings are {', '.join(names)}.{did_you_mean(name, names)}"
                )
        variables = os.environ if environment is None else environment
        values = {
            setting.name: setting.value_of(arguments[setting.name])
            if arguments.get(setting.name, NOT_GIVEN) is not NOT_GIVEN
            else _from_variables(setting, variables)
            for setting in SETTINGS
        }
        return cls(**values)  # type: ignore[arg-type]  # each reader returns its field's type; a test holds it

    @property
    def capsule_when(self) -> Capsule:
        """When to write a capsule. A run without a server writes no files by default."""
        return self.capsule if self.capsule != "auto" else "error" if self.server is not None else "never"

    def as_dict(self) -> dict[str, Any]:
        """Return how the run is watched as a caller would write it, in types that JSON has; but without secrets."""
        plain: dict[str, Any] = {each.name: _plain(getattr(self, each.name)) for each in SETTINGS if not each.of_run}
        return plain | {each.name: [HIDDEN for _ in plain[each.name]] for each in SETTINGS if each.secret}


def _from_variables(setting: Setting, variables: Mapping[str, str]) -> object:
    for variable in (setting.variable, "HOOKCORE_URL") if setting.name == "server" else (setting.variable,):
        text = variables.get(variable, "")
        if text.strip():
            return setting.value_of_text(variable, text)
    return setting.value_of(setting.default)


def _plain(value: object) -> object:
    if isinstance(value, GivenRules):
        return dict(value.thresholds)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [f"type:{each.__name__}" if isinstance(each, type) else each for each in value]
    return value


# Environment variables that are not settings of a training, and not a launcher's.

PREFIX: Final = "HOOKCORE_"
TOKEN: Final = "HOOKCORE_TOKEN"
# Those of servers, collectors, and hookcore's own processes, and the others of trainings, without the prefix.
_OTHERS: Final = (
    "ALLOWED_HOSTS CA_FILE CERTFILE CLICKHOUSE_PASSWORD DASHBOARD FRAME_ANCESTORS HOME HOST IDLE_STOP_S INSERT "
    "KEEP_LIMIT KEYFILE LISTEN_FD LOCK_FD LOST_AFTER_S MAX_BODY MAX_CLIENTS MAX_CONNECTIONS MAX_RUNS PORT READ_TOKEN "
    "RECEIVE_S RETAIN ROOT_PATH RULES_FILE RUN_PYTHONPATH SPOOL SPOOL_LIMIT STORE SYNC TO TOKEN TO_TOKEN URL"
)
KNOWN: Final = frozenset(
    [*(each.variable for each in SETTINGS), *(f"{PREFIX}{name}" for name in _OTHERS.split())],
)


def token_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the token for a server; files and secret stores often end it with a newline."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def unknown_variables(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence about each variable that looks like one of hookcore's and is none."""
    for name in sorted(os.environ if environment is None else environment):
        if name.startswith(PREFIX) and name not in KNOWN:
            yield f"the variable {name} is unknown and has no effect.{did_you_mean(name, KNOWN)}"
