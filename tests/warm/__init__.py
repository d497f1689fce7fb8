"""A Python whose processes are forks of one that has already imported torch, hookcore, and the server.

The imports of a process take three seconds of a core, and a fork takes none. Apart from that, such a process is
like one of `python`: it has its own arguments, folder, environment, and files, its script is `__main__`, signals reach
it, and it ends like Python, but without tearing down its modules. It isn't a child of the process that started it.
Processes that it starts with `sys.executable` are forks, too, unless PYTHON_EXEC names another Python (for torchrun).
Tests about imports need a Python of their own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
# The imports of trainings, which take a core three seconds. Every optimizer imports the first module.
_OF_TRAININGS: Final = ("torch._dynamo", "torch.nn.parallel", "hookcore.watcher", "pytest")
# The imports of servers, which take two. They import the last ones with their first connection and request.
_OF_SERVERS: Final = (
    "hookcore_app.api.rest",
    "hookcore_app.main",
    "hookcore_app.serving.server",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "anyio._backends._asyncio",
)
# All processes of one pytest share the parent of the forks.
_RUN: Final = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


@cache
def python() -> str:
    """Return the path of such a Python. Its processes end with the tests."""
    folder = Path(tempfile.gettempdir()) / f"hookcore-python-{_RUN}"
    folder.mkdir(mode=0o700, exist_ok=True)
    address, command = folder / "socket", folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = None if command.exists() else _start(address)
        lease = socket.socket(socket.AF_UNIX)
        lease.connect(str(address))
        if started is not None:
            client = shlex.join([sys.executable, "-I", "-S", str(_HERE / "client.py"), str(address)])
            command.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
            command.chmod(0o700)
    atexit.register(_end, lease, started)
    return str(command)


def _start(address: Path) -> subprocess.Popen[bytes]:
    """Start the parent, and return when it listens."""
    command = [sys.executable, str(_HERE / "parent.py"), str(address), *_OF_TRAININGS, *_OF_SERVERS]
    given = {**os.environ, "OMP_NUM_THREADS": "1"}  # torch reads it only when it is imported
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=given)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"listening\n", "the parent of the forks did not start"
    return process


def _end(lease: socket.socket, started: subprocess.Popen[bytes] | None) -> None:
    lease.close()
    if started is not None:
        started.wait()
