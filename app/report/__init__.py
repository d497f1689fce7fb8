"""A run as one HTML file that needs no server and no network: to keep, to send, to print. It knows no web."""

from __future__ import annotations

from .document import MAX_BYTES, report_of

__all__ = ["MAX_BYTES", "report_of"]
