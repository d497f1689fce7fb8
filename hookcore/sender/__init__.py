"""The trainer's side of the wire: sends frames to a server over HTTP, from its own thread. Imports no torch."""

from hookcore.sender.connection import Address
from hookcore.sender.sink import HttpSink

__all__ = ["Address", "HttpSink"]
