"""A coding agent in a test: the real client of MCP, which asks over one of the two transports."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.warm import python

PATIENCE_S = 120.0


@dataclass
class Agent:
    """Calls tools, and counts the calls."""

    client: Client
    portal: BlockingPortal
    calls: int = 0
    is_error: bool = False  # of the last answer
    image: bytes = b""

    def ask(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return the text of its answer."""
        self.calls += 1
        result = self.portal.call(self.client.call_tool, tool, arguments)
        self.is_error = bool(result.is_error)
        self.image = b"".join(base64.b64decode(each.data) for each in result.content if each.type == "image")
        return "\n".join(each.text for each in result.content if each.type == "text")

    def tools(self) -> dict[str, Any]:
        """Return the tools by name."""
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}


@contextmanager
def over_http(url: str, token: str = "", mode: str = "auto", **headers: str) -> Iterator[Agent]:
    """Return an agent that asks the server at an address. `mode="legacy"` is how older agents connect."""
    given = ({"Authorization": f"Bearer {token}"} if token else {}) | headers
    with start_blocking_portal() as portal:

        async def make() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(headers=given, timeout=PATIENCE_S)

        http = portal.call(make)
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        with portal.wrap_async_context_manager(Client(transport, mode=mode)) as client:
            yield Agent(client, portal)
        portal.call(http.aclose)


@contextmanager
def over_stdio(*arguments: str, **variables: str) -> Iterator[Agent]:
    """Return an agent that starts `hookcore mcp`."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    command = StdioServerParameters(
        command=str(python()), args=["-m", "hookcore_app.cli", "mcp", *arguments], env=dict(environment)
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(command)) as client:
        yield Agent(client, portal)
