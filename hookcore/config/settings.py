"""What one watcher was told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hookcore.config.readers import Pattern, did_you_mean
from hookcore.config.table import SETTINGS, Attach, Compiled, Setting
from hookcore.errors import ArgumentError
from hookcore.records import Kind, Phase


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
    keep: str | None
    bridge: str | None
    name: str

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None, /, **arguments: object) -> Settings:
        """The settings of a call: arguments, else variables, else defaults. A wrong one raises ArgumentError.

        The variables are those of the process where no `environment` is given.
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
            if setting.name in arguments
            else _from_variables(setting, variables)
            for setting in SETTINGS
        }
        return cls(**values)  # type: ignore[arg-type]  # each reader returns its field's type; a test holds it

    def as_dict(self) -> dict[str, Any]:
        """The settings as a caller would write them, in types that JSON has."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def _from_variables(setting: Setting, variables: Mapping[str, str]) -> object:
    for variable in (setting.variable, "HOOKCORE_URL") if setting.name == "server" else (setting.variable,):
        text = variables.get(variable, "")
        if text.strip():
            return setting.value_of_text(variable, text)
    return setting.value_of(setting.default)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [f"type:{each.__name__}" if isinstance(each, type) else each for each in value]
    return value
