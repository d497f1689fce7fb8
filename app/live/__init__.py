"""The live streams: server-sent events for scripts, a binary socket for the pages, one publisher for both.

A follower keeps a cursor and asks the store for what lies beyond it; there is no queue anywhere. docs/live.md has the
formats. Not here: who may connect (the guard), and questions about the past (the REST interface).
"""

from __future__ import annotations

from fastapi import APIRouter

from .deadline import WriteDeadline
from .publisher import Publisher, publisher_of
from .socket import router as _socket
from .sse import router as _sse

router = APIRouter()
router.include_router(_sse)
router.include_router(_socket)

__all__ = ["Publisher", "WriteDeadline", "publisher_of", "router"]
