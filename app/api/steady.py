"""Routes whose answers don't change because a run leaves memory meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ..runs.steady import has_swapped, watch_reads

ATTEMPTS: Final = 3


class SteadyRoute(APIRoute):
    """A route that answers a GET again if a run that it reads was unloaded or read again meanwhile.

    The store that takes its place has only the range of steps, so the run's tensors would seem unknown.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        answer = super().get_route_handler()

        async def answer_steadily(request: Request) -> Response:
            if request.method != "GET":
                return await answer(request)
            for _ in range(ATTEMPTS):
                read = watch_reads()
                try:
                    made = await answer(request)
                except Exception:
                    if not has_swapped(read):
                        raise
                else:
                    if not has_swapped(read):
                        return made
            raise HTTPException(503, "the run leaves memory again and again: try again", {"Retry-After": "2"})

        return answer_steadily
