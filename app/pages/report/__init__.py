"""A run as one HTML file to keep, send, or print. It needs no server and no network, and imports no web framework."""

from __future__ import annotations

from .document import MAX_BYTES, report_of
from .view import View

__all__ = ["MAX_BYTES", "View", "report_of"]
