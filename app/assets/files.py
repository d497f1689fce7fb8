"""The static files of the pages: scripts, styles, icons. Read once, and addressed by a hash of their contents."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from . import joined

FOLDER: Final = Path(__file__).parent.parent / "static"
FOREVER: Final = "public, max-age=31536000, immutable"
MIN_SQUEEZED: Final = 1024
MAX_NAMES: Final = 1024  # limit of cached names; any client can request unknown names

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed."""

    content: bytes
    squeezed: bytes
    type: str


@cache
def version() -> str:
    """Return a version of all files together. It is part of their addresses, so that a change gets a new address."""
    digest = hashlib.sha256()
    for path in (*sorted(FOLDER.rglob("*")), Path(joined.__file__)):
        if path.is_file():
            digest.update(path.relative_to(FOLDER.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _files() -> frozenset[Path]:
    return frozenset(path for path in FOLDER.rglob("*") if path.is_file())


@lru_cache(MAX_NAMES)
def read(name: str) -> Asset | None:
    """Return a file by its path below `static`, or None. Compressed once, not for every request.

    `joined/flow.js` is `js/pages/flow.js` with what it imports, `joined/flow/js/drawer/drawer.js` is what that
    page imports late, and `joined/workers/` has those of web workers.
    """
    whole = re.fullmatch(r"joined/(workers/)?(\w+\.js)", name)
    late = re.fullmatch(r"joined/(\w+)/(js/.+\.js)", name)
    source = f"js/{whole[1] or 'pages/'}{whole[2]}" if whole else f"js/pages/{late[1]}.js" if late else name
    path = FOLDER / source
    if path not in _files() or (late and late[2] not in _joined(source).late):
        return None
    if late:
        content = _joined(source).part(late[2]).encode()
    else:
        content = _joined(source).script.encode() if whole else path.read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    text = kind.startswith("text/") or kind in ("image/svg+xml", "application/javascript")
    squeezed = gzip.compress(content, 9) if text and len(content) >= MIN_SQUEEZED else b""
    return Asset(content, squeezed, f"{kind}; charset=utf-8" if text else kind)


def read_all() -> None:
    """Read all files of the pages in advance, so that their first readers needn't wait."""
    version()
    for path in (*FOLDER.glob("*.*"), *FOLDER.glob("css/*"), *FOLDER.glob("vendor/*.js")):
        read(path.relative_to(FOLDER).as_posix())
    for path in FOLDER.glob("js/pages/*.js"):
        read(f"joined/{path.name}")
        for late in _joined(f"js/pages/{path.name}").late:
            read(f"joined/{path.stem}/{late}")
    for path in FOLDER.glob("js/workers/*.js"):
        read(f"joined/workers/{path.name}")


@cache
def _joined(source: str) -> joined.Joined:
    return joined.join(source, _text_of)


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
