"""Which modules of a run ever held NaN or infinities."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from hookcore.store import Store

_AT_ONCE: Final = 512  # taps that are read together


class Nonfinite:
    """The modules of a store that ever held NaN or infinities, as far as the store still knows; from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_to: int | None = None
        self._frames = -1
        self._modules: set[str] = set()

    def modules(self) -> frozenset[str]:
        """Return their paths. What was read before is not read again."""
        with self._lock:
            steps = self._store.steps()
            if steps.frames != self._frames:
                self._read()
                self._read_to, self._frames = steps.newest, steps.frames
            return frozenset(self._modules)

    def _read(self) -> None:
        found = self._store.taps()
        for start in range(0, len(found.taps), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            rows = self._store.rows(found.numbers[part], "nan", self._read_to)
            bad = np.flatnonzero(rows.nonfinite.any(axis=0))
            self._modules.update(found.taps[start + int(place)].module for place in bad)
