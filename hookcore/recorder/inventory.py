"""The hooks on everything that a recorder knows, in the words of the run: owners by their path in the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from torch.optim import Optimizer

from hookcore import hooks
from hookcore.recorder.plans import Root
from hookcore.records import HookRecord

MAX_HOOKS: Final = 20_000
_ELSEWHERE: Final = ("process", "thread")  # the thread that lists is the recorder's, whose hooks say nothing


def list_hooks(roots: Iterable[Root], optimizers: Iterable[Optimizer]) -> tuple[HookRecord, ...]:
    """The hooks on the models, their parameters, the optimizers and the process; the first `MAX_HOOKS` of them."""
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
                yield replace(record, owner=_joined(root.name, record.owner)) if root.name else record


def _joined(root: str, owner: str) -> str:
    return f"{root}/{owner}" if owner else root
