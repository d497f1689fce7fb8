"""All modules of a page as one script.

The files stay small modules for reading, checking, and testing, and nothing is built in advance. A browser that loads
some seventy modules level by level shows its first numbers half a second later (`benchmarks.browser`, load).

Each module becomes a function that is called once, after those that it imports from, and returns its exports. The
modules use only the few forms of import and export below, without cycles; anything else is an error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

_WRAPPED: Final = re.compile(r"^(import|export) \{\n([^{}]*?),?\n\} from", re.MULTILINE)
_IMPORT: Final = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[^"]+)";$')
_PASSED_ON: Final = re.compile(r'^export \{ (\w+(?:, \w+)*) \} from "(\.[^"]+)";$')
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+).*)$")
_OTHER: Final = re.compile(r"^(?:import|export)\b")


def join(first: str, read: Callable[[str], str]) -> str:
    """Return a module and everything it needs as one script. `read` returns the text of a module by its path."""
    done: dict[str, str] = {}
    _add(first, read, done, ())
    return "\n".join(done.values())


def _add(name: str, read: Callable[[str], str], done: dict[str, str], within: tuple[str, ...]) -> None:
    if name in within:
        raise ValueError(f"modules import each other: {' -> '.join((*within, name))}")
    body, exports = [], []
    for line in _WRAPPED.sub(_on_one_line, read(name)).splitlines():
        if found := _IMPORT.match(line) or _PASSED_ON.match(line):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[2]))
            if other not in done:
                _add(other, read, done, (*within, name))
            if line.startswith("export"):
                exports += [f"{each}: {_variable(other)}.{each}" for each in found[1].split(", ")]
            else:
                body.append(f"const {{ {found[1].replace(' as ', ': ')} }} = {_variable(other)};")
        elif found := _EXPORT.match(line):
            body.append(found[1])
            exports.append(found[2])
        elif _OTHER.match(line):
            raise ValueError(f"{name}: neither `import {{ ... }} from` nor `export` of something with a name: {line}")
        else:
            body.append(line)
    returned = f"return {{ {', '.join(exports)} }};"
    done[name] = "\n".join((f"// {name}", f"const {_variable(name)} = (() => {{", *body, returned, "})();"))


def _on_one_line(names: re.Match[str]) -> str:
    return f"{names[1]} {{ {' '.join(names[2].split())} }} from"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)
