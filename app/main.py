"""The application: its routes and mounts, its guard, and its error answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from hookcore import answers
from hookcore.answers.base import Answer
from hookcore.errors import HookcoreError
from hookcore.records import text_of

from . import api, assets, live, pages
from .api import health, ingest
from .api.given import PROBLEM
from .guard import login
from .guard.access import Access
from .guard.security import Guard
from .guard.usage import Usage
from .notifying import Notifications
from .pages.error import error_page, wants_page
from .runs import Runs
from .runs.explaining import Explainer
from .runs.keep import Keeper
from .settings import ServerSettings


class App(FastAPI):
    """FastAPI with the guard around everything, so that no answer lacks its headers, not even that of a crash."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard around FastAPI's own middleware."""
        state = self.state
        return Guard(super().build_middleware_stack(), state.settings, state.access, state.usage)

    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's schema, with the schemas of the answers."""
        if self.openapi_schema is None:
            kinds = [each for each in vars(answers).values() if isinstance(each, type) and issubclass(each, Answer)]
            super().openapi()["components"]["schemas"].update(answers.components(kinds))
        return super().openapi()


def create_app(runs: Runs, settings: ServerSettings) -> FastAPI:
    """Create an application over `runs`.

    Without a token in the settings, everyone who can reach it can do everything. `hookcore serve` always creates one.
    """
    app = App(
        title="hookcore",
        redirect_slashes=False,  # an unknown address is a 404, not a redirect
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        responses={"4XX": {"content": PROBLEM, "description": "what was wrong, and what to do"}},
    )
    app.state.runs, app.state.settings = runs, settings
    app.state.access, app.state.usage = Access(settings), Usage()
    app.state.intake, app.state.keeper = ingest.Intake(), Keeper(runs, settings, pages.summary_of)
    app.state.explainer = Explainer()
    app.state.notifications = Notifications.of(runs, settings)
    app.state.stopping = False
    app.add_exception_handler(HookcoreError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_invalid)
    app.add_exception_handler(HTTPException, _explain_refused)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _explain_crash)
    for part in (health, ingest, login, live, api, assets, pages):
        app.include_router(part.router)
    return app


def _problem(request: Request, sentence: str, status: int, headers: Any = None) -> Response:
    sentence = text_of(sentence)  # it may contain a path
    if wants_page(request):
        return error_page(request, sentence, status, headers)
    return JSONResponse({"error": sentence}, status, headers)


async def _explain(request: Request, error: Exception) -> Response:
    return _problem(request, str(error), 400)


async def _explain_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = (f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}" for each in error.errors()[:5])
    return _problem(request, "; ".join(told), 422)


async def _explain_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(request, str(error.detail), error.status_code, error.headers)


async def _explain_crash(request: Request, _error: Exception) -> Response:
    return _problem(request, "something went wrong in the server; its log has the details", 500)


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client has left or took too long, which is no error to log
