"""Runs apprise in a process of its own: reads a request from the standard input, and writes the results.

Apprise and the libraries below it log addresses, draw from the process's random numbers, and start threads that an exit
waits for. A training process must have none of this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Final

SEND_S: Final = 30.0
MAX_AT_ONCE: Final = 16
_SAFE: Final = {"PYTHONSAFEPATH": "1"}  # imports nothing from this folder; Python 3.10 ignores it


def ask(addresses: Sequence[str], message: dict[str, str] | None = None) -> list[Any]:
    """Return the name of each address's service, or None for an unknown one; with a message, whether it arrived.

    Raises OSError, ValueError, or `subprocess.TimeoutExpired` if that can't be found out.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],  # without the package, which imports NumPy
        input=json.dumps({"addresses": list(addresses), "message": message}).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it may contain addresses
        env={**os.environ, **_SAFE},
        timeout=SEND_S,
        check=False,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    targets = [_open(address) for address in request["addresses"]]
    message = request["message"]
    if message is None:
        results: list[Any] = [None if target is None else str(target[0].service_name) for target in targets]
    else:
        with ThreadPoolExecutor(MAX_AT_ONCE) as pool:  # a dead target must not delay the others
            results = list(pool.map(lambda target: _send(target, message), targets))
    sys.stdout.write(json.dumps(results))


def _open(address: str) -> Any:
    """Return what sends to an address, or None for an unknown one."""
    target = import_module("apprise").Apprise()
    return target if target.add(address) else None


def _send(target: Any, message: dict[str, str]) -> bool:
    try:
        return target is not None and bool(target.notify(**message, body_format="text"))
    except Exception:  # a broken plugin of apprise
        return False


if __name__ == "__main__":
    main()
