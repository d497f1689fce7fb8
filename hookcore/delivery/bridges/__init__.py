"""Bridges to other tools: each step's key figures for TensorBoard and similar tools.

A bridge receives the frames after the recorder, on its own thread. It stores nothing and sends no commands.
"""

from hookcore.delivery.bridges.bridge import Bridge, bridge_for
from hookcore.delivery.bridges.summary import Summary

__all__ = ["Bridge", "Summary", "bridge_for"]
