"""The application: its routes and mounts, its guard, and its error answers."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

import hookcore
from hookcore.errors import HookcoreError
from hookcore.reading import answers
from hookcore.reading.answers.base import Answer
from hookcore.records import text_of

from . import api, assets, live
from .api import health, ingest, login
from .api.routing import PROBLEM
from .clickhouse.client import ClickHouseError, ClusterAddress, UnreachableError
from .clickhouse.cluster.entry import Partial
from .clickhouse.cluster.shared import SharedRuns
from .clickhouse.native import FormatError
from .clickhouse.schema import SchemaError, connect
from .pages import every
from .pages.settings import error_page, wants_page
from .pages.views.run_list import summary_of
from .runs import Runs
from .runs.alerts import Explainer, Notifications
from .runs.keep import Keeper
from .serving.guard.access import Access, Usage
from .serving.guard.security import Guard
from .settings import ServerSettings

_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"content": PROBLEM, "description": "what was wrong, and what to do"}
}
# No reader can cause these: ClickHouse is away, refuses, or answers something else.
_OF_CLICKHOUSE: Final = (UnreachableError, ClickHouseError, FormatError, SchemaError)


class App(FastAPI):
    """FastAPI with the guard around everything, so that every answer has its headers, even after a crash."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard around FastAPI's own middleware."""
        state = self.state
        inside = super().build_middleware_stack()
        if state.settings.store:
            inside = Partial(inside, state.runs)
        return Guard(inside, state.settings, state.access, state.usage)

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
        responses=_REFUSALS,
    )
    app.state.settings, app.state.stopping = settings, False
    app.state.access, app.state.usage, app.state.intake = Access(settings), Usage(), ingest.Intake()
    app.add_exception_handler(HookcoreError, _explain)
    for kind in _OF_CLICKHOUSE:
        app.add_exception_handler(kind, _explain_away)
    app.add_exception_handler(RequestValidationError, _explain_invalid)
    app.add_exception_handler(HTTPException, _explain_refused)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _explain_crash)
    return app


def create_app(runs: Runs, settings: ServerSettings, trouble: str = "") -> FastAPI:
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
    app.router.routes.extend(_routes())
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Return all routes, for every application: to analyze their parameters takes longer than most requests."""
    router = APIRouter(responses=_REFUSALS)
    for part in (health, ingest, login, live, api, assets, every):
        router.include_router(part.router)
    return router.routes


def share_runs(app: App, settings: ServerSettings) -> None:
    """Let an application show the runs of a ClickHouse, once it is started. Raises ArgumentError for its address."""
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
    code = f", code {error.code}" if isinstance(error, ClickHouseError) and error.code else ""
    sentence = f"partial: ClickHouse can't be read now ({error}{code}). Try again; its log may say more"
    return _problem(request, sentence, 503, {"Retry-After": "2"})


async def _explain_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = (f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}" for each in error.errors()[:5])
    return _problem(request, "; ".join(told), 422)


async def _explain_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RecursionError):  # which FastAPI doesn't name
        return _problem(request, "the body is nested too deeply: send the JSON object that /docs describes", 400)
    return _problem(request, str(error.detail), error.status_code, error.headers)


async def _explain_crash(request: Request, _error: Exception) -> Response:
    return _problem(request, "something went wrong in the server; its log has the details", 500)


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client has left or took too long, which is no error to log
