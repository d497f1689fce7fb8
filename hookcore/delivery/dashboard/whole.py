"""Files that appear whole or not at all, and the remains of files whose writer was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from hookcore.delivery.dashboard.lives import lives

UNFINISHED: Final = ".unfinished"  # at the end of a name, so that no pattern for finished files matches it
_NAME: Final = re.compile(rf"\.(.+)\.(\d{{1,10}})\.\d{{1,20}}\{UNFINISHED}", re.ASCII)


def make_folder(path: Path) -> None:
    """Create a folder and its parents. Other users can't write to new ones, whatever the umask."""
    for each in (*reversed(path.absolute().parents), path):
        if not each.is_dir():
            each.mkdir(mode=0o755, exist_ok=True)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name when the block ends, and is removed if the block raises.

    Other users can't write to it, whatever the umask.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags | os.O_NOFOLLOW, 0o644), "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def remove_orphans(folder: Path, name: str = "") -> int:
    """Remove the unfinished files in a folder whose writers are dead, or only those of one file; count them."""
    removed = 0
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            match = _NAME.fullmatch(each.name)
            if match is not None and name in ("", match[1]) and _is_orphan(each, int(match[2])):
                with contextlib.suppress(OSError):
                    each.unlink()
                    removed += 1
    return removed


def _is_orphan(path: Path, writer: int) -> bool:
    """Return whether a writer is surely dead: no process here has its number, and no process anywhere its lock."""
    if lives(writer):
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by a writer on another machine, or not to be locked: left alone
        return False
    return True
