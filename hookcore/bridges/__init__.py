"""Bridges to other tools: each step's key figures for TensorBoard and similar tools.

A bridge follows the frames behind the recorder, on a thread of its own. It is no store, and no way back.
"""

from hookcore.bridges.summary import Summary
from hookcore.bridges.tee import TeeSink, bridge_for

__all__ = ["Summary", "TeeSink", "bridge_for"]
