"""The hooks on everything that a recorder knows, with the names of the run: owners by their full path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from torch.optim import Optimizer

from hookcore import hooks
from hookcore.recorder.roots import Root, joined
from hookcore.records import HookRecord

MAX_HOOKS: Final = 20_000
_ELSEWHERE: Final = ("process", "thread")  # the listing thread is the recorder's, so its hooks are irrelevant


def list_hooks(roots: Iterable[Root], optimizers: Iterable[Optimizer]) -> tuple[HookRecord, ...]:
    """Return the first `MAX_HOOKS` hooks on the models, their parameters, the optimizers, and the process."""
    return tuple(islice(_list(roots, optimizers), MAX_HOOKS))


def _list(roots: Iterable[Root], optimizers: Iterable[Optimizer]) -> Iterator[HookRecord]:
    for record in hooks.inventory(optimizers=list(optimizers)):
        if record.scope != "thread":
            yield record
    for root in roots:
        module = root.ref()
        if module is None:
            continue
        for record in hooks.inventory(module):
            if record.scope not in _ELSEWHERE:
                yield replace(record, owner=joined(root.name, record.owner)) if root.name else record
