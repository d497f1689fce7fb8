"""A run as one HTML file to keep, send, or print. It needs no server and no network, and imports no web framework."""

from __future__ import annotations

from .charts import ReportSteps
from .document import MAX_BYTES, report_of

__all__ = ["MAX_BYTES", "ReportSteps", "report_of"]
