"""Bridges out: the few numbers that tell how a run is, step by step, into a tool that somebody has already.

A bridge follows the frames behind the recorder, on a thread of its own. It is no store, and no way back.
"""

from hookcore.bridges.summary import Summary
from hookcore.bridges.tee import TeeSink, bridge_for

__all__ = ["Summary", "TeeSink", "bridge_for"]
