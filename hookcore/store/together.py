"""Rows of several stores, such as those of the ranks of a training: their pasts are asked for them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookcore.store.past import Span
from hookcore.store.rows import Rows
from hookcore.store.store import MAX_ROWS, Source, Store, gather_together


@dataclass(frozen=True, slots=True, eq=False)
class RowsOf:
    """A query to one store: one stat of some taps, or a scalar by its name, in a span of steps."""

    store: Store
    what: NDArray[np.int64] | str
    stat: str = ""
    span: Span = (None, None)

    @property
    def lanes(self) -> int:
        """The number of taps, or 1 for a scalar."""
        return 1 if isinstance(self.what, str) else len(self.what)

    @property
    def source(self) -> Source:
        """Where it is in memory."""
        if isinstance(self.what, str):
            return self.store.source_of_scalar(self.what)
        return self.store.source_of_taps(self.stat, self.what)


def rows_of_all(asked: Sequence[RowsOf], most: int = MAX_ROWS) -> list[Rows]:
    """Return the rows of each store without down-sampling, as `Store.rows` and `Store.scalar_rows` do.

    Of steps that only its past has, about `most` rows are returned if there are more.
    """
    found = [Rows.empty(each.lanes) for each in asked]
    filled = [place for place, each in enumerate(asked) if each.lanes]
    questions = [(asked[place].store, asked[place].source, asked[place].span) for place in filled]
    for place, parts in zip(filled, gather_together(questions, most), strict=True):
        if parts:
            found[place] = Rows.join(parts) if isinstance(asked[place].what, str) else Rows.stack(parts)
    return found
