"""The static files of the pages, named by a hash of their contents; a page's modules as one script; the templates."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
import shutil
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

import hookcore
from hookcore.delivery.dashboard.private import PrivateFolder
from hookcore.delivery.dashboard.process import make_private

# All modules of a page as one script, and what is imported late.
#
# The files stay small modules for reading, checking, and testing, and nothing is built in advance. A browser that loads
# some seventy modules level by level shows its first numbers half a second later (`benchmarks.browser`, load).
#
# Each module becomes a function that is called once, after those that it imports from, and returns its exports. The
# modules use only the few forms of import and export below, without cycles; anything else is an error. Comments and
# indentation are left out.
#
# What a page doesn't need at once is imported by `import("./path.js")`, also by a module that is itself imported late.
# Modules that the page's script doesn't have are put together by who needs them, so each is in exactly one script.

_WRAPPED: Final = re.compile(r"^(import|export) \{\n([^{}]*?),?\n\} from", re.MULTILINE)
_IMPORT: Final = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[^"]+)";$')
_PASSED_ON: Final = re.compile(r'^export \{ (\w+(?:, \w+)*) \} from "(\.[^"]+)";$')
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+).*)$")
_OTHER: Final = re.compile(r"^(?:import\b(?!\()|export\b)")
_LATE: Final = re.compile(r'\bimport\("(\.[^"]+)"\)')
_KEPT_LATE: Final = re.compile(r'\bimport\("([^".][^"]*)"\)')
# Comments for readers and tsc: from /** to */, lines of //, and // at the end of a line. No string has the first.
_COMMENT: Final = re.compile(
    r"/\*\*(?:[^*]|\*(?!/))*\*/[ \t]*|^[ \t]*//[^\n]*(?:\n|\Z)|[ \t]+// [^\n'\"`]*$", re.MULTILINE
)
_WORD: Final = re.compile(r"(?<![.\w])\w+")
_INDENT: Final = re.compile(r"^[ \t]+|\n(?=\n)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Joined:
    """The modules of a page as scripts. `read` returns the text of a module by its path."""

    first: str
    read: Callable[[str], str]
    texts: dict[str, str] = field(default_factory=dict)  # of each module, after those that it imports from
    needs: dict[str, set[str]] = field(default_factory=dict)  # the modules that each one imports from
    late: list[str] = field(default_factory=list)  # the modules that are imported by `import()`
    places: dict[str, str] = field(default_factory=dict)  # the late script of each module; "" is the page's own

    @property
    def parts(self) -> set[str]:
        """The names of the late scripts: each is that of its last module."""
        return {*self.places.values()} - {""}

    def script(self, part: str = "") -> str:
        """Return the page's script, or a late one, whose path is below the name of the page's."""
        names = [name for name in self.texts if self.places[name] == part]
        own = _KEPT_LATE.sub(lambda found: self._late(found[1], part), "\n".join(self.texts[name] for name in names))
        used = set(_WORD.findall(own)) if part else set()  # the page's script has all that it needs
        taken = dict[str, list[str]]()
        for name, place in self.places.items():
            if place != part and _variable(name) in used:
                taken.setdefault(place, []).append(_variable(name))
        imports = [f'import {{ {", ".join(each)} }} from "{self._from(part, place)}";' for place, each in taken.items()]
        exports = [f"export {{ {', '.join(map(_variable, names))} }};"] if self.late else []
        return "\n".join((*imports, own, *exports))

    def _late(self, name: str, part: str) -> str:
        place = self.places[name]
        if place in ("", part):
            return f"Promise.resolve({_variable(name)})"
        return f'import("{self._from(part, place)}").then((part) => part.{_variable(name)})'

    def _from(self, part: str, place: str) -> str:
        """Return the path from one script to another."""
        page = posixpath.basename(self.first)
        target = f"{page.removesuffix('.js')}/{place}" if place else page
        return "../" * (part.count("/") + 1) + target if part else f"./{target}"

    def reach(self, name: str) -> set[str]:
        """Return a module and all that it needs at once."""
        found, ahead = set[str](), [name]
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += self.needs[each]
        return found


def join(first: str, read: Callable[[str], str]) -> Joined:
    """Return a module and everything it needs, at once and late. `read` returns the text of a module by its path."""
    joined = Joined(first, read)
    _add(first, joined, ())
    for name in joined.late:  # grows meanwhile
        if name not in joined.texts:
            _add(name, joined, ())
    at_once = joined.reach(first)
    reaches = {name: joined.reach(name) for name in joined.late}
    users = {name: frozenset(late for late in joined.late if name in reaches[late]) for name in joined.texts}
    last = {users[name]: name for name in joined.texts if name not in at_once}
    joined.places.update((name, "" if name in at_once else last[users[name]]) for name in joined.texts)
    return joined


def _add(name: str, into: Joined, within: tuple[str, ...]) -> None:
    if name in within:
        raise ValueError(f"modules import each other: {' -> '.join((*within, name))}")
    needs = into.needs.setdefault(name, set())
    text, others = _function_of(name, into.read(name))
    for other, is_late in others:
        if not is_late:
            needs.add(other)
            if other not in into.texts:
                _add(other, into, (*within, name))
        elif other not in into.late:
            into.late.append(other)
    into.texts[name] = text


@cache
def _function_of(name: str, text: str) -> tuple[str, tuple[tuple[str, bool], ...]]:
    """Return a module as a function, and the modules that it imports, in order, and whether late. Pages share many."""
    body, exports = list[str](), list[str]()
    others = list[tuple[str, bool]]()

    def late(found: re.Match[str]) -> str:
        others.append((_path(name, found[1]), True))
        return f'import("{others[-1][0]}")'

    text = _INDENT.sub("", _WRAPPED.sub(_on_one_line, _COMMENT.sub("", text)))
    for line in text.splitlines():
        if found := _IMPORT.match(line) or _PASSED_ON.match(line):
            other = _path(name, found[2])
            others.append((other, False))
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
    return "\n".join((f"const {_variable(name)} = (() => {{", *body, returned, "})();")), tuple(others)


def _path(name: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))


def _on_one_line(names: re.Match[str]) -> str:
    return f"{names[1]} {{ {' '.join(names[2].split())} }} from"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)


# The static files of the pages: scripts, styles, icons. Read once, and addressed by a hash of their contents.

FOLDER: Final = Path(__file__).parent / "static"
FOREVER: Final = "public, max-age=31536000, immutable"
MIN_SQUEEZED: Final = 1024
MAX_VERSIONS: Final = 3  # of this package, whose prepared files are kept
MAX_KEPT: Final = 2**24  # bytes of one of these files
MAX_NAMES: Final = 1024  # limit of cached names; any client can request unknown names

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, compressed if that makes it smaller: both forms of all files would take 6 MB more."""

    plain: bytes  # empty if it is compressed
    squeezed: bytes
    type: str

    @property
    def content(self) -> bytes:
        """The file as it is."""
        return gzip.decompress(self.squeezed) if self.squeezed else self.plain


@cache
def version() -> str:
    """Return a version of all files together. It is part of their addresses, so that a change gets a new address."""
    digest = hashlib.sha256()
    for path in (*sorted(FOLDER.rglob("*")), Path(__file__)):
        if path.is_file():
            digest.update(path.relative_to(FOLDER.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class Prepared:
    """What was made of the files once, kept on disk for the next servers of this version. Without a folder: nothing.

    To join and compress the scripts and to compile the templates takes a server longer than to import all of its code.
    The folder is closed to other users, because code is read from it.
    """

    folder: PrivateFolder | None = None

    def use(self, folder: Path) -> None:
        """Keep it in a folder of this version, and remove those of others, but for the newest ones."""
        own = folder / version()
        with suppress(OSError):  # such as a read-only disk: everything is made again
            make_private(own)
            if any(stat.S_IMODE(each.stat().st_mode) & 0o022 for each in (folder, own)):
                return
            others = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime_ns, reverse=True)
            for each in others[MAX_VERSIONS:]:
                if each != own:
                    shutil.rmtree(each, ignore_errors=True)
            self.folder = PrivateFolder(own)

    def read(self, name: str) -> bytes:
        """Return what is kept under a name; nothing if it isn't."""
        with suppress(OSError):
            return b"" if self.folder is None else self.folder.read(_key(name), MAX_KEPT)
        return b""

    def write(self, name: str, made: bytes) -> None:
        """Keep something, whole or not at all."""
        if self.folder is not None:
            with suppress(OSError):
                self.folder.write(_key(name), made)


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:24]


class _Compiled(BytecodeCache):
    """Compiled templates among it. Jinja compares their sources, and compiles again what is damaged."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read a template."""
        if kept := prepared.read(bucket.key):
            try:
                bucket.bytecode_from_string(kept)
            except Exception:  # damaged, in any way
                bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write a template."""
        prepared.write(bucket.key, bucket.bytecode_to_string())


prepared: Final = Prepared()


@cache
def _files() -> frozenset[Path]:
    return frozenset(path for path in FOLDER.rglob("*") if path.is_file())


@lru_cache(MAX_NAMES)
def read(name: str) -> Asset | None:
    """Return a file by its path below `static`, or None. Compressed once, not for every request.

    `joined/flow.js` is `js/pages/flow.js` with what it imports, `joined/flow/js/drawer/drawer.js` is a part that
    it imports late, and `joined/workers/` has those of web workers.
    """
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    is_text = kind.startswith("text/") or kind in ("image/svg+xml", "application/javascript")
    kept = prepared.read(name) if is_text else b""
    if kept:
        with suppress(OSError, EOFError, zlib.error):  # damaged: it is made again
            gzip.decompress(kept)
            return Asset(b"", kept, f"{kind}; charset=utf-8")
    content = _content_of(name)
    if content is None:
        return None
    squeezed = gzip.compress(content, 9, mtime=0) if is_text and len(content) >= MIN_SQUEEZED else b""
    if squeezed:
        prepared.write(name, squeezed)
    return Asset(b"" if squeezed else content, squeezed, f"{kind}; charset=utf-8" if is_text else kind)


def _content_of(name: str) -> bytes | None:
    whole = re.fullmatch(r"joined/(workers/)?(\w+\.js)", name)
    late = re.fullmatch(r"joined/(\w+)/(js/.+\.js)", name)
    source = f"js/{whole[1] or 'pages/'}{whole[2]}" if whole else f"js/pages/{late[1]}.js" if late else name
    path = FOLDER / source
    if path not in _files() or (late and late[2] not in _joined(source).parts):
        return None
    return _joined(source).script(late[2] if late else "").encode() if late or whole else path.read_bytes()


def read_all() -> None:
    """Read all files of the pages in advance, so that their first readers needn't wait."""
    version()
    for path in (*FOLDER.glob("*.*"), *FOLDER.glob("css/*"), *FOLDER.glob("vendor/*.js")):
        read(path.relative_to(FOLDER).as_posix())
    for path in FOLDER.glob("js/pages/*.js"):
        read(f"joined/{path.name}")
        for late in _joined(f"js/pages/{path.name}").parts:
            read(f"joined/{path.stem}/{late}")
    for path in FOLDER.glob("js/workers/*.js"):
        read(f"joined/workers/{path.name}")
    _joined.cache_clear()  # the texts of all modules, for each page
    _function_of.cache_clear()


@cache
def _joined(source: str) -> Joined:
    return join(source, _text_of)


def _text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that hookcore uses, or a library of others in `vendor/` that the pages use."""

    name: str
    version: str
    license: str
    text: str = ""  # the file with the text of the license, for a library in the pages


@cache
def vendored() -> tuple[Package, ...]:
    """Return the libraries of others, with the versions that their files state."""
    return (
        Package(
            "plotly.js",
            _stated("plotly-cartesian.min.js", r"plotly\.js .{0,40}? v([0-9.]+)"),
            "MIT",
            _license("plotly"),
        ),
        Package("dagre", _stated("dagre.min.js", r"dagre ([0-9.]+), MIT"), "MIT", _license("dagre")),
    )


def _stated(name: str, pattern: str) -> str:
    found = re.search(pattern, _text_of(f"vendor/{name}"))
    return found[1] if found else "unknown"


def _license(name: str) -> str:
    return f"vendor/{name}-LICENSE.txt"


@router.get("/static/{of_version}/{name:path}")
async def asset(request: Request, of_version: str, name: str) -> Response:
    """Return a file. Browsers cache it forever, because other contents have another address."""
    found = read(name) if ".." not in name else None
    if found is None:
        raise HTTPException(404, f"there is no file {name[:200]!r}: reload the page")
    headers = {"Cache-Control": FOREVER if of_version == version() else "no-cache", "Vary": "Accept-Encoding"}
    if found.squeezed and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.squeezed, media_type=found.type, headers=headers)
    return Response(found.content, media_type=found.type, headers=headers)


# The site of the documentation of this version: part of a wheel, or built in a checkout.

SITES: Final = FOLDER.parent / "site", FOLDER.parents[1] / "build/site" / hookcore.__version__
NO_SITE: Final = (
    "this installation doesn't contain the documentation: in a checkout, build it with `make site`, or read the same "
    "pages in docs/"
)


def site() -> Path | None:
    """Return the folder with the site; None if this installation has none."""
    return next((each for each in SITES if each.is_dir()), None)


@router.get("/docs")
async def documentation_folder() -> Response:
    """Redirect to the folder. The address is relative, because a proxy may add a prefix."""
    return RedirectResponse("docs/")


@router.get("/docs/{name:path}")
async def documentation(request: Request, name: str) -> Response:
    """Return a file of the documentation. Browsers ask again each time, because another version has the same names."""
    folder = site()
    if folder is None:
        raise HTTPException(404, NO_SITE)
    from starlette.staticfiles import StaticFiles  # only for readers of the documentation

    response = await StaticFiles(directory=folder, html=True).get_response(name, request.scope)
    response.headers["Cache-Control"] = "private, no-cache"
    return response


TEMPLATES = Path(__file__).parent / "templates"


def open_templates(folder: str = "") -> Environment:
    """Return the templates of a folder. They escape all values, and a name without a value is an error."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES / folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_Compiled(),
    )
