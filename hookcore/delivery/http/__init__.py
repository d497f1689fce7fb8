"""The trainer's side of the wire: sends frames to a server over HTTP, from its own thread. Imports no torch."""

from hookcore.delivery.http.connection import Address
from hookcore.delivery.http.outbox import Outbox
from hookcore.delivery.http.parcels import PARCEL_BYTES, Parcel
from hookcore.delivery.http.sink import HttpSink

__all__ = ["PARCEL_BYTES", "Address", "HttpSink", "Outbox", "Parcel"]
