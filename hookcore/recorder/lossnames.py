"""The names of the losses that several optimizers are stepped for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from hookcore.recorder.owners import Owner, Owners
from hookcore.recorder.parameters import Parameter, Parameters
from hookcore.records.vocabulary import FOUND_LOSS

_BETWEEN: Final = re.compile(r"[/.]")  # the name of a model and a path, and the parts of a path
_Parts = tuple[str, ...]


class LossNames:
    """Names each loss by what its optimizer steps, if optimizers take turns. A name that was given stays."""

    def __init__(self, owners: Owners, parameters: Parameters) -> None:
        self._owners, self._parameters = owners, parameters

    def name_of(self, owner: Owner | None) -> str:
        """Return the name of the loss that this optimizer is stepped for; None: whichever it is."""
        if owner is None or owner.inside:
            return FOUND_LOSS
        if not owner.loss_name:
            owner.loss_name = self._choose(owner)
        return owner.loss_name

    def _choose(self, owner: Owner) -> str:
        used = {each.loss_name for each in self._owners}
        others = self._others(owner)
        if not others and FOUND_LOSS not in used:
            return FOUND_LOSS
        label = _label(_parts_of(self._owned(owner)), others)
        if label and (name := f"{FOUND_LOSS} {label}") not in used:
            return name
        place = self._owners.place_of(owner)
        numbered = [FOUND_LOSS if not each else f"{FOUND_LOSS}{each + 1}" for each in (place, *range(len(used) + 1))]
        return next(name for name in numbered if name not in used)

    def _others(self, owner: Owner) -> list[_Parts]:
        """Return what the optimizers step that take turns with this one, or may do so later."""
        known = [each for each in self._owners if each.owns]
        turns = [each for each in known if each is not owner and (each.ended or not each.steps)]
        owned = {id(each) for known_owner in known for each in self._owned(known_owner)}
        trainable = (each for each in self._parameters.all() if (t := each.tensor) is not None and t.requires_grad)
        # Looking for those that haven't stepped yet takes a while, so only if they have something left to step.
        later = self._owners.find_waiting() if any(id(each) not in owned for each in trainable) else []
        return [_parts_of(each) for each in (*map(self._owned, turns), *later)]

    def _owned(self, owner: Owner) -> list[Parameter]:
        optimizer = owner.ref()
        return [] if optimizer is None else self._parameters.owned(optimizer)


def _parts_of(owned: Sequence[Parameter]) -> _Parts:
    """Return what the paths of parameters begin with."""
    paths = [(*filter(None, _BETWEEN.split(each.plan.path)), each.name) for each in owned]
    return tuple(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _label(parts: _Parts, others: Sequence[_Parts]) -> str:
    """Return as much of a path as tells it from the others; "" if nothing does."""
    lengths = range(1, len(parts) + 1)
    told = (parts[:length] for length in lengths if all(other[:length] != parts[:length] for other in others))
    return ".".join(next(told, ()))
