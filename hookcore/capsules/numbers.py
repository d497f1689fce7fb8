"""Plain numbers that a model's own code changes in its calls, such as a layer's count of them.

A model is pickled after its call, so a replay would go on counting. It begins with the numbers of the call instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import nn

FIRST: Final = 8  # calls before each of which all numbers are looked at;
EVERY: Final = 64  # later, before one in this many, and otherwise only those that were seen to change
_PLAIN: Final = frozenset((int, float, bool, str, type(None)))
_MODE: Final = "training"

Numbers = list[tuple[str, str, Any]]  # the path of a module, the name of its attribute, and the value


class Counters:
    """The numbers of one model's own modules, and those that were seen to change."""

    __slots__ = ("_before", "_calls", "_modules", "_moving")

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(_own_modules(model))
        self._before: dict[tuple[str, str], Any] = {}
        self._moving: list[tuple[str, str, dict[str, Any]]] = []
        self._calls = 0

    def at_call(self) -> Numbers:
        """Return the numbers as they are now, when a call begins: those that change, and sometimes all."""
        looks = self._calls < FIRST or self._calls % EVERY == 0
        self._calls += 1
        if looks:
            return self._look()
        return [(path, name, attributes[name]) for path, name, attributes in self._moving if name in attributes]

    def _look(self) -> Numbers:
        found: Numbers = []
        known = {(path, name) for path, name, _ in self._moving}
        for path, attributes in self._modules:
            for name, value in _numbers_in(attributes):
                key = path, name
                if self._before.get(key, value) != value and key not in known:
                    self._moving.append((path, name, attributes))
                self._before[key] = value
                found.append((path, name, value))
        return found


def numbers_of(model: nn.Module) -> Numbers:
    """Return all numbers of a model's own modules."""
    return [(path, name, value) for path, each in _own_modules(model) for name, value in _numbers_in(each)]


def set_numbers(model: nn.Module, numbers: Numbers) -> None:
    """Give the modules of a model the numbers of a call."""
    modules = dict(model.named_modules())
    for path, name, value in numbers:
        if path in modules:
            modules[path].__dict__[name] = value


def _own_modules(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes of the modules that aren't torch's, by path."""
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch."):
            yield path, vars(module)


def _numbers_in(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attributes.items() if type(value) in _PLAIN and name != _MODE]
