"""The application: its routes and mounts, its guard, and its error answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final
from urllib.parse import unquote

from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import hookcore
from hookcore.errors import HookcoreError
from hookcore.reading import Client, answers
from hookcore.reading.answers.base import Answer
from hookcore.records import text_of

from . import assets, live, pages
from .api import health, ingest, login
from .api.routing import REFUSALS
from .pages.page import error_page, wants_page
from .pages.views.run_list import summary_of
from .runs import Runs
from .runs.alerts import Explainer, Notifications
from .runs.keep import Keeper
from .serving.guard.access import Access, Usage
from .serving.guard.security import AGENTS, Guard, Partial, is_owner
from .settings import ServerSettings

NO_MCP: Final = "mcp is not installed: run `pip install 'hookcore[mcp]'` in the environment of the server"
_RETRIED: Final = "hookcore.retried"  # in the scope of a request


class App(FastAPI):
    """FastAPI with the guard around everything, so that every answer has its headers, even after a crash.

    Some routes may be late: they are made when an unknown address is requested, or all routes are asked for.
    """

    _late: Callable[[], Sequence[BaseRoute]] | None = None

    def add_late(self, make: Callable[[], Sequence[BaseRoute]]) -> None:
        """Let these routes be late. No path of them may be one of the other routes, with whatever method."""
        self._late = make
        self._completing = threading.Lock()
        self._unknown, self.router.default = self.router.default, self._answer_late

    async def _answer_late(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look for a route again, once all are there."""
        if _RETRIED in scope:
            await self._unknown(scope, receive, send)
            return
        scope[_RETRIED] = True  # also if they are there by now: another thread may have added them meanwhile
        if self._late is not None:
            await run_in_threadpool(self.complete)
        await self.router.app(scope, receive, send)

    def complete(self) -> None:
        """Make the late routes, if that wasn't done yet."""
        if self._late is None:
            return
        with self._completing:
            if self._late is not None:
                self.router.routes.extend(self._late())
                self._late = None

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes."""
        self.complete()
        return super().routes

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard around FastAPI's own middleware."""
        state = self.state
        inside = super().build_middleware_stack()
        if state.settings.store:
            inside = Partial(inside, state.runs)
        self._inside = inside
        return Guard(inside, state.settings, state.access, state.usage)

    async def answer_inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this process itself, which needs no guard."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self._inside({**scope, "app": self}, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's schema, with the schemas of the answers."""
        if self.openapi_schema is None:
            kinds = [var for var in vars(answers).values() if isinstance(var, type) and issubclass(var, Answer)]
            super().openapi()["components"]["schemas"].update(answers.components(kinds))
        return super().openapi()


def make_app(settings: ServerSettings, title: str) -> App:
    """Return an application without routes: its guard, its intake of batches, and its error answers.

    Without a token in the settings, everyone who can reach it can do everything. The commands always create one.
    """
    app = App(
        title=title,
        redirect_slashes=False,  # an unknown address is a 404, not a redirect
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        responses=REFUSALS,
    )
    app.state.settings, app.state.stopping = settings, False
    app.state.access, app.state.usage, app.state.intake = Access(settings), Usage(), ingest.Intake()
    app.add_exception_handler(HookcoreError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_invalid)
    app.add_exception_handler(HTTPException, _explain_refused)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _explain_crash)
    return app


def create_app(runs: Runs, settings: ServerSettings, trouble: str = "") -> App:
    """Create an application over `runs`. `trouble` says why they can't be saved, if they should be."""
    app = make_app(settings, "hookcore")
    intake: ingest.Intake = app.state.intake
    app.state.runs = runs
    app.state.keeper = Keeper(runs, settings, summary_of, trouble, lambda: intake.waiting_bytes > 0)
    app.state.take = partial(ingest.take_into_runs, app.state)
    app.state.shared = None
    if settings.store:
        share_runs(app, settings)
    app.state.explainer = Explainer()
    app.state.notifications = Notifications.of(runs, settings)
    for part in (health, ingest, login, live, assets, pages):
        app.router.routes.extend(part.router.routes)
    app.router.routes.append(Route(AGENTS, Agents(app), include_in_schema=False))
    app.add_late(_rest)
    return app


class Agents:
    """MCP for coding agents. Its package is imported with the first request."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._limiter: CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. An agent may command only with the full-access token, if the settings allow it at all."""
        if scope["method"] != "POST":
            raise HTTPException(405, "MCP has no sessions here: send POST requests", {"Allow": "POST"})
        agents = await run_in_threadpool(import_agents)
        self._limiter = self._limiter or CapacityLimiter(agents.AT_ONCE)
        settings: ServerSettings = self._app.state.settings
        commands, why_not = False, "this server lets agents only read: start it with --allow-commands"
        if settings.allow_commands:
            commands, why_not = is_owner(scope, self._app.state.access), "commands need the full-access token"
        request = Request(scope)
        url = f"{request.url.scheme}://{request.headers['host']}{scope.get('root_path', '')}"
        server = agents.make_server(client_inside(self._app, url), commands, why_not, self._limiter)
        await agents.serve_http(server, scope, receive, send)


def import_agents() -> Any:
    """Return the module that answers agents. Raises HTTPException if it lacks a package."""
    try:
        from . import agents
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise HTTPException(501, NO_MCP) from None
    return agents


@cache
def _rest() -> Sequence[BaseRoute]:
    """Return the routes of REST. To import and analyze them takes longer than the rest of a server's start."""
    from .api import rest

    return rest.router.routes


def client_inside(app: App, url: str = "") -> Client:
    """Return a client that asks an application in this process, from a thread without an event loop."""

    def carry(method: str, address: str, data: bytes | None) -> tuple[int, bytes]:
        return asyncio.run(_answer_to(app, method, address, data))

    return Client.inside(carry, url)


async def _answer_to(app: App, method: str, address: str, data: bytes | None) -> tuple[int, bytes]:
    path, _, query = address.partition("?")
    host, kind = (b"host", b"127.0.0.1"), (b"content-type", b"application/json")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
    }
    scope |= {"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""}
    scope |= {"headers": [host] if data is None else [host, kind], "server": ("127.0.0.1", 80), "state": {}}
    status, parts = 500, list[bytes]()

    async def receive() -> Message:
        return {"type": "http.request", "body": data or b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app.answer_inside(scope, receive, send)
    return status, b"".join(parts)


def share_runs(app: App, settings: ServerSettings) -> None:
    """Let an application show the runs of a ClickHouse, once it is started. Raises ArgumentError for its address."""
    from .clickhouse.client import ClickHouseError, ClusterAddress, UnreachableError  # only for a server with a store
    from .clickhouse.cluster.shared import SharedRuns
    from .clickhouse.native import FormatError
    from .clickhouse.schema import SchemaError, connect

    # No reader can cause these: ClickHouse is away, refuses, or answers something else.
    for kind in (UnreachableError, ClickHouseError, FormatError, SchemaError):
        app.add_exception_handler(kind, _explain_away)
    cluster = connect(ClusterAddress.of(settings.store), hookcore.__version__)
    app.state.shared = SharedRuns(app.state.runs, cluster, settings, summary_of)
    app.state.take = partial(ingest.refuse_runs, app.state)


def _problem(request: Request, sentence: str, status: int, headers: Any = None) -> Response:
    sentence = text_of(sentence)  # it may contain a path
    if wants_page(request) and hasattr(request.app.state, "runs"):  # a collector has no pages
        return error_page(request, sentence, status, headers)
    return JSONResponse({"error": sentence}, status, headers)


async def _explain(request: Request, error: Exception) -> Response:
    return _problem(request, str(error), 400)


async def _explain_away(request: Request, error: Exception) -> Response:
    code = getattr(error, "code", 0)
    said = f"{error}, code {code}" if code else str(error)
    sentence = f"partial: ClickHouse can't be read now ({said}). Try again; its log may say more"
    return _problem(request, sentence, 503, {"Retry-After": "2"})


async def _explain_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = (f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}" for each in error.errors()[:5])
    return _problem(request, "; ".join(told), 422)


async def _explain_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RecursionError):  # which FastAPI doesn't name
        return _problem(request, "the body is nested too deeply: send the JSON object in docs/http-api.md", 400)
    return _problem(request, str(error.detail), error.status_code, error.headers)


async def _explain_crash(request: Request, _error: Exception) -> Response:
    return _problem(request, "something went wrong in the server; its log has the details", 500)


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client has left or took too long, which is no error to log
