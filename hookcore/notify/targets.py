"""The places that notifications go to. Their addresses contain secrets, so nothing shows more than a service's name."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from hookcore.errors import ArgumentError
from hookcore.records import Severity

_KINDS: Final[dict[Severity, str]] = {"error": "failure", "warning": "warning", "info": "info"}  # in apprise's words
_LOGS: Final = (logging.getLogger("apprise"), logging.getLogger("urllib3.connectionpool"))
_notifying: Final[ContextVar[bool]] = ContextVar("hookcore_notifies", default=False)


@dataclass(slots=True, eq=False)
class Target:
    """One place, and how many messages it has received."""

    name: str  # of the service, numbered if there are several
    _apprise: Any = field(repr=False)
    sent: int = 0
    failed: int = 0
    works: bool | None = None  # whether it received the newest message

    def send(self, title: str, body: str, severity: Severity) -> bool:
        """Send a message and return whether the service accepted it. May take many seconds."""
        try:
            with _quiet():
                told = {"title": title, "body": body, "notify_type": _KINDS[severity], "body_format": "text"}
                self.works = bool(self._apprise.notify(**told))
        except Exception:  # a plugin of apprise that is broken for this address
            self.works = False
        return self.works


def targets_of(addresses: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets for addresses. Raise ArgumentError for a wrong one, or if apprise is not installed."""
    if not addresses:
        return ()
    if find_spec("apprise") is None:
        raise ArgumentError("notify needs apprise, which is not installed: pip install apprise")
    for log in _LOGS:
        log.addFilter(_others)
    found = [_open(address, number) for number, address in enumerate(addresses, start=1)]
    names = Counter(name for name, _ in found)
    seen: Counter[str] = Counter()
    targets = []
    for name, opened in found:
        seen[name] += 1
        targets.append(Target(f"{name} {seen[name]}" if names[name] > 1 else name, opened))
    return tuple(targets)


def _open(address: str, number: int) -> tuple[str, Any]:
    """Return the name of a service, and what sends to it."""
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the many libraries that apprise tries to import
        opened = import_module("apprise").Apprise()
        if not opened.add(address):
            scheme = address.partition("://")[0][:20] if "://" in address else ""
            shown = f", which begins with {scheme!r}," if scheme.isalnum() else ""
            raise ArgumentError(
                f"address {number} of notify{shown} is not one that apprise knows: use an address such as "
                "slack://TOKEN_A/TOKEN_B/TOKEN_C or json://HOST/PATH, see https://appriseit.com/services/"
            )
    return str(opened[0].service_name), opened


class _Others(logging.Filter):
    """Drops what is logged while we notify: it may contain addresses. Apprise passes our context on to its threads."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _notifying.get()


_others: Final = _Others()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    token = _notifying.set(True)
    try:
        yield
    finally:
        _notifying.reset(token)
