"""Where an exception began: the line of the user's own code, and the module whose call raised."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

MAX_FRAMES: Final = 10_000  # of a recursion without end
MAX_CODE: Final = 300  # characters of a line
_CALLS: Final = frozenset(("forward", "_call_impl"))
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHON: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES: Final = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"

PathOf = Callable[[object], "str | None"]  # the path of a watched module; None for anything else


@dataclass(frozen=True, slots=True)
class Blame:
    """What is known about the place at which an exception began."""

    module: str | None = None  # the innermost watched module that was running
    file: str = ""
    line: int = 0
    code: str = ""


def blame_of(error: BaseException, path_of: PathOf) -> Blame:
    """Return the innermost watched module and the innermost line of the user's code in a traceback."""
    module, own = None, None
    for frame, line in _frames(error.__traceback__):
        path = _path_in(frame, path_of)
        module = module if path is None else path
        if is_own(frame.f_code):
            own = frame, line
    if own is None:
        return Blame(module)
    frame, line = own
    code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return Blame(module, frame.f_code.co_filename, line, code[:MAX_CODE])


def is_own(code: CodeType) -> bool:
    """Return whether code is the user's: of no installed package, of neither Python nor hookcore, and in a file."""
    file = code.co_filename
    if file.startswith("<") and not _is_cell(file):
        return False
    return not (file.startswith((_OURS, *_PYTHON)) or any(each in file for each in _PACKAGES))


def _is_cell(file: str) -> bool:
    """Return whether the name is that of a cell of a notebook, or of a text at the prompt."""
    return file in ("<stdin>", "<string>") or file.startswith("<ipython-input")


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback and their lines, the outermost first."""
    for _ in range(MAX_FRAMES):
        if trace is None:
            return
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _path_in(frame: FrameType, path_of: PathOf) -> str | None:
    """Return the path of the module that is called in a frame."""
    # Those of other functions aren't read: Python would keep what they refer to for as long as they run.
    if frame.f_code.co_name not in _CALLS:
        return None
    owner: Any = frame.f_locals.get("self")
    return path_of(owner)
