"""The live streams: server-sent events for scripts, a binary socket for the pages, and one publisher for both.

Each follower has a cursor and asks the store for everything past it; there are no queues. docs/live.md has the formats.
Authorization (the guard) and queries about the past (REST) are elsewhere.
"""

from __future__ import annotations

from fastapi import APIRouter

from .publisher import Publisher, publisher_of
from .socket import router as _socket
from .sse import router as _sse

router = APIRouter(routes=[*_sse.routes, *_socket.routes])

__all__ = ["Publisher", "publisher_of", "router"]
