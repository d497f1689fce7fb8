"""The application: what is mounted where, and whom it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from hookcore.errors import HookcoreError
from hookcore.store import Store

from . import api, pages
from .schemas import StrictJson

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create_app(store: Store, allowed_hosts: Sequence[str] = LOOPBACK_HOSTS) -> FastAPI:
    """An application that shows `store`.

    It only reads, and has no passwords: give it to a server that listens on 127.0.0.1. A request must name one of
    `allowed_hosts`, so that no foreign page can reach it by a host name of its own that leads to this machine.
    """
    app = FastAPI(title="hookcore", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json")
    app.state.store = store
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.middleware("http")(_add_headers)
    app.add_exception_handler(HookcoreError, _explain)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=pages.FOLDER / "static"), name="static")
    return app


async def _add_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    response.headers.update(_HEADERS)
    return response


async def _explain(_request: Request, error: Exception) -> Response:
    return StrictJson({"error": str(error)}, status_code=400)
