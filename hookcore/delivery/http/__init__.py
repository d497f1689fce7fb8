"""The trainer's side of the wire: sends frames to a server over HTTP, from its own thread. Imports no torch."""

from hookcore.delivery.http.connection import Address
from hookcore.delivery.http.sink import HttpSink

__all__ = ["Address", "HttpSink"]
