"""Places that owners and readers share: a quarter is reserved for owners, and readers of one address get half."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager


class Places:
    """A limited number of places. A reader is named by an address; owners by "". Used in one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._readers: Counter[str] = Counter()  # places by the address of a reader

    def is_full(self, reader: str) -> bool:
        """Return whether there is no place for a reader or an owner now."""
        if self.taken >= self.most:
            return True
        readers = self.taken - self._readers[""]
        return reader != "" and (
            readers >= self.most - self.most // 4 or self._readers[reader] >= max(1, self.most // 2)
        )

    @contextmanager
    def hold(self, reader: str) -> Generator[None, None, None]:
        """Take a place while the block runs, whether or not there is one."""
        self.taken += 1
        self._readers[reader] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._readers[reader] -= 1
            if not self._readers[reader]:
                del self._readers[reader]
