"""The live streams: server-sent events for scripts, a binary socket for the pages, and one publisher for both.

Each follower has a cursor and asks the store for everything past it; there are no queues. docs/live.md has the formats.
Authorization (the guard) and queries about the past (REST) are elsewhere.
"""

from __future__ import annotations

from fastapi import APIRouter

from ..serving.guard.security import ONLY_KNOWN
from .publisher import Publisher, publisher_of
from .socket import router as _socket
from .sse import router as _sse

router = APIRouter(dependencies=[ONLY_KNOWN])
router.include_router(_sse)
router.include_router(_socket)

__all__ = ["Publisher", "publisher_of", "router"]
