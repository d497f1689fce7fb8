"""docs/http-api.md: what it says to ask with curl is answered, and it says so for every route."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tests.api_world import attend, fill, open_run
from tests.serving import TOKEN, Served, served

PAGE = (Path(__file__).parents[1] / "docs" / "http-api.md").read_text()
CURLS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
CURLS = [line for line in CURLS if line.startswith("curl ")]


@pytest.fixture(scope="module")
def world() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as server:
        yield server


class Curl:
    """What a line of curl asks for; an option that is not known here is an error."""

    def __init__(self, line: str, url: str) -> None:
        words = iter(shlex.split(line.replace("$URL", url).replace("$AUTH", f"Authorization: Bearer {TOKEN}"))[1:])
        self.method, self.body, self.headers, self.streams = "GET", None, {}, False
        data: list[tuple[str, str]] = []
        for word in words:
            if word == "-H":
                name, _, value = next(words).partition(": ")
                self.headers[name] = value
            elif word == "-X":
                self.method = next(words)
            elif word == "-d":
                self.body = next(words)
            elif word == "--data-urlencode":
                name, _, value = next(words).partition("=")
                data.append((name, value))
            elif word == "-o":
                next(words)
            elif word == "-N":
                self.streams = True
            elif word != "-G":
                self.url = word
        parts = urlsplit(self.url)
        joined = "&".join(filter(None, [parts.query, urlencode(data)]))
        self.path, self.address = parts.path, quote(parts.path) + (f"?{joined}" if joined else "")

    headers: dict[str, str]
    body: str | None

    def ask(self, port: int) -> tuple[int, str, bytes]:
        """The status, the type and the beginning of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request(self.method, self.address, self.body, self.headers)
            answer = connection.getresponse()
            data = answer.readline() if self.streams else answer.read()
            return answer.status, answer.headers.get("Content-Type", ""), data
        finally:
            connection.close()


@pytest.mark.parametrize("line", CURLS)
def test_what_the_page_asks_for_is_answered(world: Served, line: str) -> None:
    for name in ("old", "run-2", "run-1"):
        attend(fill(open_run(world.runs, name, started_s=2.0)))
    status, kind, data = Curl(line, world.url).ask(world.port)
    assert status in (200, 202, 204), data
    if kind.startswith("application/json"):
        assert "error" not in json.loads(data)
    assert data or status == 204


def test_the_page_asks_every_route(world: Served) -> None:
    asked = {(curl.method.lower(), _pattern(curl.path)) for curl in (Curl(line, world.url) for line in CURLS)}
    there_are: set[Any] = set()
    for path, methods in world.app.openapi()["paths"].items():
        there_are |= {(method, path) for method, said in methods.items() if said.get("tags") == ["runs"]}
    assert there_are <= asked, f"docs/http-api.md does not show {sorted(there_are - asked)}"


def _pattern(path: str) -> str:
    path = re.sub(r"^(/api/v1/runs)/[\w-]+", r"\1/{run}", path)
    return re.sub(r"/snapshots/\d+", "/snapshots/{number}", path)
