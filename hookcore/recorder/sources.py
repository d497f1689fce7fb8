"""The file and line of the class of a module, found without running any of its code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Final

MAX_FILE: Final = 2_000_000  # characters of a source file
MAX_CLASSES: Final = 4096  # that are remembered


def source_of(kind: type) -> str:
    """Return where a class is defined, as `file:line`; "" if unknown, for example for classes made by functions."""
    name = kind.__name__
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    codes = [code for code in _codes_of(kind) if file is None or code.co_filename == file]
    if not codes:
        return "" if file is None else _find(file, name, None)
    first = min(codes, key=lambda code: code.co_firstlineno)
    return _find(first.co_filename, name, first.co_firstlineno) or f"{first.co_filename}:{first.co_firstlineno}"


def _codes_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of the functions that are written in the class."""
    for value in list(vars(kind).values()):
        if type(value) is FunctionType and value.__module__ == kind.__module__:
            yield value.__code__


@lru_cache(MAX_CLASSES)
def _find(file: str, name: str, before: int | None) -> str:
    """Return the line of the last such class up to a line, or of the only one."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            text = opened.read(MAX_FILE)
    except (OSError, ValueError):
        return ""
    lines = [text.count("\n", 0, found.start("word")) + 1 for found in _classes(text, name)]
    fitting = lines if before is None else [line for line in lines if line <= before]
    if not fitting or (before is None and len(fitting) > 1):
        return ""
    return f"{file}:{fitting[-1]}"


def _classes(text: str, name: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"^[ \t]*(?P<word>class)[ \t]+{re.escape(name)}\b", text, re.MULTILINE)
