"""The places that notifications go to. Their addresses contain secrets, so nothing shows more than a service's name."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from hookcore.delivery.notify.child import ask
from hookcore.errors import ArgumentError
from hookcore.records import Severity

_KINDS: Final[dict[Severity, str]] = {"error": "failure", "warning": "warning", "info": "info"}  # in apprise's words
_NO_ANSWER: Final = (OSError, ValueError, subprocess.TimeoutExpired)


@dataclass(slots=True, eq=False)
class Target:
    """One place, and how many messages it has received."""

    name: str  # of the service, numbered if there are several
    address: str = field(repr=False)
    sent: int = 0
    failed: int = 0
    works: bool | None = None  # whether it received the newest message


def send_to(targets: Sequence[Target], title: str, body: str, severity: Severity) -> list[Target]:
    """Send a message and return the targets that did not accept it. May take many seconds."""
    message = {"title": title, "body": body, "notify_type": _KINDS[severity]}
    try:
        arrived = ask([each.address for each in targets], message)
    except _NO_ANSWER:
        arrived = [False] * len(targets)
    for target, well in zip(targets, arrived, strict=True):
        target.works = well is True
    return [each for each in targets if not each.works]


def targets_of(addresses: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets for addresses. Raise ArgumentError for a wrong one, or if apprise is not installed."""
    if not addresses:
        return ()
    if find_spec("apprise") is None:
        raise ArgumentError("notify needs apprise, which is not installed: pip install apprise")
    names = _names_of(addresses)
    total, seen = Counter(names), Counter[str]()
    targets = []
    for name, address in zip(names, addresses, strict=True):
        seen[name] += 1
        targets.append(Target(f"{name} {seen[name]}" if total[name] > 1 else name, address))
    return tuple(targets)


def _names_of(addresses: Sequence[str]) -> list[str]:
    try:
        found: list[Any] = ask(addresses)
    except _NO_ANSWER as error:
        why = type(error).__name__  # its text may contain addresses
        raise ArgumentError(
            f"the addresses of notify can't be checked ({why}): does `apprise --version` work?"
        ) from None
    for number, (name, address) in enumerate(zip(found, addresses, strict=True), start=1):
        if name is None:
            scheme = address.partition("://")[0][:20] if "://" in address else ""
            shown = f", which begins with {scheme!r}," if scheme.isalnum() else ""
            raise ArgumentError(
                f"address {number} of notify{shown} is not an apprise address: use one such as "
                "slack://TOKEN_A/TOKEN_B/TOKEN_C or json://HOST/PATH, see https://appriseit.com/services/"
            )
    return found
