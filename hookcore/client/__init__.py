"""Queries to a dashboard from a script. Imports no torch and no web framework."""

from __future__ import annotations

from hookcore.client.client import Client

__all__ = ["Client"]
