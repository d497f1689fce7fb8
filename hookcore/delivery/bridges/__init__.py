"""Bridges to other tools: each step's key figures for TensorBoard and similar tools.

A bridge follows the frames behind the recorder, on a thread of its own. It is no store, and no way back.
"""

from hookcore.delivery.bridges.summary import Summary
from hookcore.delivery.bridges.tee import TeeSink, bridge_for

__all__ = ["Summary", "TeeSink", "bridge_for"]
