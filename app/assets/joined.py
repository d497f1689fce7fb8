"""All modules of a page as one script.

The files stay small modules for reading, checking, and testing, and nothing is built in advance. A browser that loads
some seventy modules level by level shows its first numbers half a second later (`benchmarks.browser`, load).

Each module becomes a function that is called once, after those that it imports from, and returns its exports. The
modules use only the few forms of import and export below, without cycles; anything else is an error. Comments are left
out, except for those at the end of a line.

What a page needs only after a click is imported by `import("./path.js")`. It is a script of its own, with what it needs
besides the modules of the page, which it imports from the page's script. So no module exists twice.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_WRAPPED: Final = re.compile(r"^(import|export) \{\n([^{}]*?),?\n\} from", re.MULTILINE)
_IMPORT: Final = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[^"]+)";$')
_PASSED_ON: Final = re.compile(r'^export \{ (\w+(?:, \w+)*) \} from "(\.[^"]+)";$')
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+).*)$")
_OTHER: Final = re.compile(r"^(?:import\b(?!\()|export\b)")
_LATE: Final = re.compile(r'\bimport\("(\.[^"]+)"\)')
# Comments for readers and tsc: from /** to */, and lines of //. No string in a script contains the former.
_COMMENT: Final = re.compile(r"/\*\*(?:[^*]|\*(?!/))*\*/[ \t]*|^[ \t]*//[^\n]*(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Joined:
    """A module with everything it needs. `read` returns the text of a module by its path."""

    first: str
    read: Callable[[str], str]
    texts: dict[str, str] = field(default_factory=dict)  # of each module, after those that it imports from
    late: set[str] = field(default_factory=set)  # the modules that are imported by `import()`
    exports: dict[str, list[str]] = field(default_factory=dict)  # the names that each module exports

    @property
    def script(self) -> str:
        """All of it as one script."""
        shared = [f"export {{ {', '.join(map(_variable, self.texts))} }};"] if self.late else []
        return "\n".join([*self.texts.values(), *shared])

    def part(self, name: str) -> str:
        """Return a module that is imported late as a script. Its path is below the name of this script."""
        known = set(self.texts)
        whole = Joined(name, self.read, dict(self.texts), exports=dict(self.exports))
        if name not in known:
            _add(name, whole, ())
        if whole.late:
            raise ValueError(f"{name}: what is imported late imports {', '.join(whole.late)} late: import it at once")
        own = "\n".join(text for each, text in whole.texts.items() if each not in known)
        used = [each for each in self.texts if each == name or re.search(rf"\b{_variable(each)}\b", own)]
        page = "../" * (name.count("/") + 1) + posixpath.basename(self.first)
        taken = f'import {{ {", ".join(map(_variable, used))} }} from "{page}";\n' if used else ""
        return f"{taken}{own}\nexport const {{ {', '.join(whole.exports[name])} }} = {_variable(name)};"


def join(first: str, read: Callable[[str], str]) -> Joined:
    """Return a module and everything it needs. `read` returns the text of a module by its path."""
    joined = Joined(first, read)
    _add(first, joined, ())
    return joined


def _add(name: str, into: Joined, within: tuple[str, ...]) -> None:
    if name in within:
        raise ValueError(f"modules import each other: {' -> '.join((*within, name))}")
    body, exports = [], []

    def late(found: re.Match[str]) -> str:
        other = _path(name, found[1])
        into.late.add(other)
        return f'import("./{posixpath.basename(into.first).removesuffix(".js")}/{other}")'

    for line in _WRAPPED.sub(_on_one_line, _COMMENT.sub("", into.read(name))).splitlines():
        if found := _IMPORT.match(line) or _PASSED_ON.match(line):
            other = _path(name, found[2])
            if other not in into.texts:
                _add(other, into, (*within, name))
            if line.startswith("export"):
                exports += [f"{each}: {_variable(other)}.{each}" for each in found[1].split(", ")]
            else:
                body.append(f"const {{ {found[1].replace(' as ', ': ')} }} = {_variable(other)};")
        elif found := _EXPORT.match(line):
            body.append(_LATE.sub(late, found[1]))
            exports.append(found[2])
        elif _OTHER.match(line):
            raise ValueError(f"{name}: neither `import {{ ... }} from` nor `export` of something with a name: {line}")
        else:
            body.append(_LATE.sub(late, line))
    returned = f"return {{ {', '.join(exports)} }};"
    into.exports[name] = [each.partition(":")[0] for each in exports]
    into.texts[name] = "\n".join((f"// {name}", f"const {_variable(name)} = (() => {{", *body, returned, "})();"))


def _path(name: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))


def _on_one_line(names: re.Match[str]) -> str:
    return f"{names[1]} {{ {' '.join(names[2].split())} }} from"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)
