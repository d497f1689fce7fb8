"""Room on Python's stack for the frames that hooks cost.

Torch puts one more frame on the stack for each running module as soon as any hook exists. A model that is nested almost
as deeply as Python's recursion limit allows would then raise RecursionError only because it is watched. While somebody
holds headroom, the limit is higher by as many frames as hooks can take, so that what ran before still runs.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Final

from hookcore.hooks.handle import registering

OWN_FRAMES: Final = 200  # that a hook body and what it calls may need at the bottom of the stack
_HIGHEST: Final = 2**31 - 1


class _Limit:
    """The limit of this process, and how many hold headroom."""

    holders = 0
    given: Final[dict[int, int]] = {}  # by a limit that was set here, the limit that it replaced


def hold_headroom() -> None:
    """Raise the recursion limit, unless it is raised already. Each call needs a `release_headroom()`."""
    with registering():
        _Limit.holders += 1
        if _Limit.holders == 1:
            now = sys.getrecursionlimit()
            before = _Limit.given.get(now, now)  # someone may have put back a limit that was read while it was raised
            # Without hooks, a call of a module takes at least three frames.
            raised = min(before + before // 3 + OWN_FRAMES, _HIGHEST)
            sys.setrecursionlimit(raised)
            _Limit.given[raised] = before


def release_headroom() -> None:
    """Put the limit back when nobody holds headroom any more. A limit that was set by someone else meanwhile stays."""
    with registering():
        _Limit.holders -= 1
        before = _Limit.given.get(sys.getrecursionlimit())
        if not _Limit.holders and before is not None:
            # Refused while the stack is deeper than that; the next release then puts it back.
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(before)
