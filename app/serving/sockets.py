"""The socket that a server listens on: opened, or inherited from the process that started this one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from hookcore.errors import ArgumentError

PORTS_TRIED: Final = 20


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on this port, the next free one, or any; raise ArgumentError for an invalid host."""
    address = "127.0.0.1" if host == "localhost" else host
    for candidate in (*range(port, min(port + PORTS_TRIED, 65536)), 0) if port else (0,):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return _with_protocol(socket.create_server((address, candidate), family=family))
        except PermissionError as error:
            raise ArgumentError(f"can't listen on port={port}: {error}; use a port above 1023") from None
        except OSError as error:
            last = error
            if isinstance(error, socket.gaierror) or "assign" in str(error):
                break
    raise ArgumentError(f"can't listen on host={host!r}: {last}; use an address of this machine")


def _with_protocol(listening: socket.socket) -> socket.socket:
    """Return the same socket with its protocol set.

    asyncio sets TCP_NODELAY only if the listening socket says that it is TCP. Without it, every answer on a reused
    connection waits 40 ms for the peer's delayed acknowledgement.
    """
    return socket.socket(fileno=listening.detach())


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the socket that the parent process opened for this one. Its lock is held until this process ends."""
    lock, given = environment.get("HOOKCORE_LOCK_FD"), environment.get("HOOKCORE_LISTEN_FD")
    if lock:
        os.set_inheritable(int(lock), False)
    if not given:
        return None
    os.set_inheritable(int(given), False)
    return socket.socket(fileno=int(given))
