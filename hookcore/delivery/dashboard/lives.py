"""Whether a process still exists. Its number alone doesn't say: numbers are used again, here and on other machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MAX_PID: Final = 2**22  # Linux has no higher one; a message can claim any
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STATE, _THREADS, _STARTED = 0, 17, 19  # places in /proc/PID/stat after the name


def mark_of(pid: int) -> str:
    """Return a mark that identifies a process across all machines; empty if it is unknown (not on Linux)."""
    place, started = _place(), _started(pid)
    return f"{place}/{started}" if place and started else ""


def lives_as(pid: int, mark: str) -> bool | None:
    """Return whether the process with this mark still exists; None if it can't be seen from here."""
    place, _, started = mark.rpartition("/")
    if not place or place != _place():
        return None
    return _started(pid) in (started, "") if lives(pid) else False


def lives(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    if not 0 < pid < MAX_PID:
        return False
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _place() -> str:
    """Return this machine, its boot, and the namespaces that numbers and times of processes belong to."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # the /proc of another namespace
            return ""
        # The name, because copies of a virtual machine have one boot.
        return "/".join((os.uname().nodename, _BOOT.read_text().strip(), *map(_namespace, ("pid", "time"))))
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except FileNotFoundError:  # an older kernel has one for all
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; "ended" for one that only waits for its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[_STATE] in "ZX" and fields[_THREADS] in "01":  # more: only its first thread has ended
            return "ended"
        return fields[_STARTED]
    except (OSError, IndexError):
        return ""  # hidden, or gone by now
