"""The newest answers about steps that no longer change, because a live page asks the same again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

MAX_BYTES: Final = 32 * 2**20

Found = TypeVar("Found")


class Recent:
    """A cache of answers of up to `max_bytes` in total; the least recently used one is dropped first."""

    def __init__(self, nbytes: Callable[[Any], int], max_bytes: int = MAX_BYTES) -> None:
        self._nbytes_of, self._max_bytes = nbytes, max_bytes
        self._found: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, asked: Hashable, find: Callable[[], Found], state: Callable[[], Hashable] = lambda: None) -> Found:
        """Return the answer to a question, found now if it isn't known. Callers must not change it.

        It is the answer in the state that is found with it.
        """
        question = asked, state()
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
                known: Found = self._found[question][0]
                return known
        found = find()
        nbytes, question = self._nbytes_of(found), (asked, state())
        with self._lock:
            if question not in self._found and nbytes <= self._max_bytes // 4:
                self._found[question] = found, nbytes
                self._nbytes += nbytes
            while self._nbytes > self._max_bytes:
                self._nbytes -= self._found.popitem(last=False)[1][1]
        return found
