"""Room on Python's stack for the frames that hooks need.

As soon as any hook exists, torch puts one more frame on the stack for each running module. A model that is nested
almost as deeply as Python's recursion limit allows would then raise RecursionError only because it is watched. Holding
headroom raises the limit by as many frames as hooks can take.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Final

from hookcore.hooks.handle import registering

OWN_FRAMES: Final = 200  # frames that a hook and its callees may need at the bottom of the stack
_HIGHEST: Final = 2**31 - 1


class _Limit:
    """The limit of this process, and the number of holders of headroom."""

    holders = 0
    given: Final[dict[int, int]] = {}  # each limit that was set here: the limit that it replaced


def hold_headroom() -> None:
    """Raise the recursion limit, unless it is raised already. Each call needs a `release_headroom()`."""
    with registering():
        _Limit.holders += 1
        if _Limit.holders == 1:
            now = sys.getrecursionlimit()
            # Other code may have restored a limit that it read while ours was raised.
            before = _Limit.given.get(now, now)
            # Without hooks, each module call takes at least three frames.
            raised = min(before + before // 3 + OWN_FRAMES, _HIGHEST)
            sys.setrecursionlimit(raised)
            _Limit.given[raised] = before


def release_headroom() -> None:
    """Restore the limit when the last holder releases it. A limit that other code has set meanwhile stays."""
    with registering():
        _Limit.holders -= 1
        before = _Limit.given.get(sys.getrecursionlimit())
        if not _Limit.holders and before is not None:
            # Refused while the stack is deeper than the limit; the next release restores it.
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(before)
