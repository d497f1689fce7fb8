"""Bridges to other tools: each step's key figures for TensorBoard and similar tools.

A bridge receives the frames after the recorder, on its own thread. It stores nothing and sends no commands.
"""

from hookcore.delivery.bridges.summary import Summary
from hookcore.delivery.bridges.tee import TeeSink, bridge_for
