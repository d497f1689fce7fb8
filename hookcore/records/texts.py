"""Names come from user code and can be any Python string. Records hold them as `text_of` writes them, so that wire,
archive, and JSON never get a string that can't be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

_ESCAPED: Final = re.compile(r"\\ud[89a-f][0-9a-f]{2}")


def text_of(text: str) -> str:
    """Return a text as a plain `str` that can be encoded: invalid Unicode is escaped as `\\udcff`."""
    if type(text) is not str:
        text = str.__str__(text)  # its letters, whatever a subclass returns
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escaped_in(texts: Iterable[str]) -> str | None:
    """Return the first text in which `text_of` escaped something."""
    return next((text for text in texts if "\\ud" in text and _ESCAPED.search(text)), None)


def write_plainly(record: Any, *names: str) -> None:
    """Rewrite these texts of a frozen record, if they need it."""
    for name in names:
        text = getattr(record, name)
        if type(text) is not str or not text.isascii():
            object.__setattr__(record, name, plain(text))


def plain(value: Any) -> Any:
    """Return a value with every text in it, however deep, written as `text_of` does."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    return {plain(name): plain(each) for name, each in value.items()} if isinstance(value, dict) else value
