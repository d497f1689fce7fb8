"""Queries about runs, to a store in this process or, with the same answers, to a server. Imports no torch."""

from __future__ import annotations

from hookcore.reading.client import Client
from hookcore.reading.local import StoreReader
from hookcore.reading.quiet import Mute, Quiet
from hookcore.reading.reader import Reader

__all__ = ["Client", "Mute", "Quiet", "Reader", "StoreReader"]
