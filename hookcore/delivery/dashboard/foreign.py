"""Files that may come from another person: only regular ones of a limited size are opened, and their JSON is tamed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from hookcore.records import plain

_MAX_DIGITS: Final = 300  # of an integer; a longer one becomes infinity, because no float can hold it


def open_regular(path: str | os.PathLike[str], most_bytes: int) -> BinaryIO:
    """Open a file for reading; raise OSError if it is a pipe, a device, or larger than `most_bytes`.

    A folder may belong to someone else. A pipe in it would wait for a writer, and a device may have no end.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    about, name = os.fstat(file.fileno()), Path(path).name
    if stat.S_ISREG(about.st_mode) and about.st_size <= most_bytes:
        return file
    file.close()
    if stat.S_ISREG(about.st_mode):
        raise OSError(f"{name} has {about.st_size} bytes: at most {most_bytes} are allowed")
    raise OSError(f"{name} is not a regular file")


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the contents of a file; raise OSError if it is a pipe, a device, or larger than `most_bytes`."""
    with open_regular(path, most_bytes) as file:
        return file.read(most_bytes)


def parsed(data: bytes) -> Any:
    """Return what JSON says. Raises ValueError if it isn't JSON, or is nested too deeply.

    All texts are valid Unicode, so they can be written anywhere, and all integers fit into a float.
    """
    try:
        return plain(json.loads(data, parse_int=_whole))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
