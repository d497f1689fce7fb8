"""A process's place among those that train one model together. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from typing import Final

from msgspec import structs

from hookcore.config import MEETING, Launched, is_loopback, launched
from hookcore.delivery.dashboard.lives import mark_of
from hookcore.records.wire import Place
from hookcore.store.rankstep import MAX_WORLD

JOB_CHARACTERS: Final = 32
PREFIX: Final = "ranks-"  # of the id of the run of all ranks, before the job


@cache
def mark(pid: int) -> str:
    """Return a mark that identifies a process across all machines."""
    return mark_of(pid) or f"{socket.gethostname()}/{pid}"


def place_by_launcher(watch: str) -> Place | None:
    """Return the place that the launcher alone makes certain; None before the process group exists, for most of them.

    `watch` is what the watch has in common with those of other ranks, and with no other one of this process.
    """
    found = launched(mark)
    return _place(found, watch) if found is not None and found.is_certain else None


def place_in_group(watch: str, rank: int, world: int, meeting: tuple[str, ...]) -> Place | None:
    """Return the place of a rank of the default process group, or None if its training can't be told from others.

    `meeting` is where the processes of the group met: `("tcp", host, port)`, `("file", path)`, or nothing.
    """
    found = launched(mark)
    if world < 2:
        return None
    is_launch = found is not None and (found.rank, found.world) == (rank, world)
    # Some launchers use a file and set an address too, and set the rank right for some processes only.
    if found is not None and is_launch and not (found.job[0] == MEETING and meeting[:1] == ("file",)):
        return _place(found, watch)
    # Variables of another launch, or none: the script called `init_process_group` with its own ranks.
    job = _job_of(meeting)
    local = rank if job and _is_here(meeting) else 0
    return _place(Launched(rank, world, local, 0, job, True), watch) if job else None


def _job_of(meeting: tuple[str, ...]) -> tuple[str, ...]:
    if meeting[:1] == ("tcp",):
        return (*meeting, mark(os.getppid())) if _is_here(meeting) else meeting
    if meeting[:1] == ("file",):
        try:
            inode = os.stat(meeting[1]).st_ino
        except OSError:
            return ()
        return (*meeting, socket.gethostname(), str(inode))
    return ()


def _is_here(meeting: tuple[str, ...]) -> bool:
    return meeting[0] == "file" or is_loopback(meeting[1])


def _place(found: Launched, watch: str) -> Place:
    texts = "\0".join((*found.job, watch))
    job = hashlib.sha256(texts.encode(errors="surrogateescape")).hexdigest()[:JOB_CHARACTERS]
    return Place(job=job, rank=found.rank, world=found.world, local_rank=found.local_rank, attempt=found.attempt)


def joint_id(place: Place | None) -> str | None:
    """Return the id of the run of all ranks; None for a process without others."""
    return None if place is None or not 2 <= place.world <= MAX_WORLD else PREFIX + place.job


def completed(place: Place, device: str, axes: dict[str, tuple[int, int]]) -> Place:
    """Return the place with what only a training in progress shows."""
    return structs.replace(place, device=device or place.device, axes=axes)
