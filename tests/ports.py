"""Free ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Return different free ports."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]
