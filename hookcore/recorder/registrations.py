"""Which module is a part of which, as torch reports it while modules are put together."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Set
from typing import Any

from torch import nn

from hookcore.hooks.compiled import guarded
from hookcore.recorder.errorlog import ErrorLog


class Registrations:
    """The newest owner of each module. By identity: the user's modules may define comparison and hash."""

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors
        self._owners: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}

    @guarded
    def saw(self, owner: nn.Module, name: str, child: Any) -> None:
        """Record which module is part of which. torch's module registration hook."""
        try:
            if isinstance(child, nn.Module) and type(owner).__name__ != "OptimizedModule":
                key, owners = id(child), self._owners
                owners[key] = (weakref.ref(child, lambda _: owners.pop(key, None)), weakref.ref(owner))
        except Exception as error:
            self._errors.record("registration hook", error)

    def topmost(self, module: nn.Module) -> nn.Module:
        """Return the outermost module that this one is a part of."""
        seen = {id(module)}
        while (known := self._owners.get(id(module))) is not None:
            child, owner = known[0](), known[1]()
            if child is not module or owner is None or id(owner) in seen:
                break
            if all(part is not module for part in owner._modules.values()):  # it was taken out
                break
            seen.add(id(owner))
            module = owner
        return module

    def having(self, parameters: Set[int]) -> Iterator[nn.Module]:
        """Yield the modules that have any of these parameters, given by id."""
        for reference in itertools.chain.from_iterable(list(self._owners.values())):
            module = reference()
            if module is not None and not parameters.isdisjoint(map(id, module._parameters.values())):
                yield module
