"""The trainer's side of the wire: frames to a server by HTTP, from a thread of its own. Knows no torch."""

from hookcore.sender.connection import Address
from hookcore.sender.sink import HttpSink

__all__ = ["Address", "HttpSink"]
