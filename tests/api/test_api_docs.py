"""docs/http-api.md shows every route. tests/repository/test_docs_commands.py runs its commands."""

from __future__ import annotations

import re
from typing import Any

from hookcore_app.main import create_app
from hookcore_app.runs import Runs
from hookcore_app.settings import ServerSettings
from tests.manual import ROOT, blocks_of

PAGE = ROOT / "docs" / "http-api.md"
CURLS = [line for block in blocks_of(PAGE, "sh") for line in block.text.splitlines() if line.startswith("curl ")]


def _asked(line: str) -> tuple[str, str]:
    """Return the method and the route of a line of curl."""
    method = re.search(r"-X (\w+)", line)
    path = re.sub(r"^(/api/v1/(?:removed-)?runs)/[\w-]+", r"\1/{run}", re.findall(r'"\$URL([^?"]*)', line)[0])
    path = re.sub(r"/incidents/[\w-]+", "/incidents/{incident}", path)
    path = re.sub(r"/capsules/[\w-]+", "/capsules/{capsule}", path)
    return method[1].lower() if method else "get", re.sub(r"/(snapshots|media)/\d+", r"/\1/{number}", path)


def _paths() -> dict[str, Any]:
    settings = ServerSettings()
    paths: dict[str, Any] = create_app(Runs(settings), settings).openapi()["paths"]
    return paths


def test_the_page_shows_every_route() -> None:
    asked = {_asked(line) for line in CURLS}
    there_are = {
        (method, path)
        for path, methods in _paths().items()
        for method, said in methods.items()
        if said.get("tags") == ["runs"]
    }
    assert there_are <= asked, f"docs/http-api.md does not show {sorted(there_are - asked)}"


def test_the_page_shows_only_existing_routes() -> None:
    paths = _paths()
    for line in CURLS:
        method, path = _asked(line)
        assert path == "/healthz" or method in paths[path], line
