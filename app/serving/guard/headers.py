"""The headers of all responses, and which pages of other sites may show the dashboard in a frame."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Message, Scope, Send

from hookcore.errors import ArgumentError

from ...settings import ServerSettings

FRAMES: Final = frozenset({b"iframe", b"frame"})
# notebooks on this machine, or behind a tunnel to it
LOCAL_PAGES: Final = ("http://127.0.0.1:*", "http://localhost:*", "https://127.0.0.1:*", "https://localhost:*")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; frame-ancestors {}; base-uri 'self'; form-action 'self'"
)
HEADERS: Final = {
    "content-security-policy": POLICY.format("'none'"),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",  # unless a route sets something else
}
Headers = list[tuple[bytes, bytes]]
COMMON: Final[Headers] = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_ANCESTOR: Final = re.compile(r"local|none|https?://(\*\.)?[A-Za-z0-9.-]+(:(\d{1,5}|\*))?|[a-z][a-z0-9.+-]*:")


def is_framed(scope: Scope) -> bool:
    """Return whether the page will be shown in a frame. Browsers that don't say so get a page that can't be framed."""
    return dict(scope["headers"]).get(b"sec-fetch-dest") in FRAMES


def ancestors_of(settings: ServerSettings) -> tuple[str, ...]:
    """Return the origins that may frame the dashboard. Raises ArgumentError for an invalid origin."""
    for each in settings.frame_ancestors:
        if not _ANCESTOR.fullmatch(each):
            raise ArgumentError(
                f"frame_ancestors={each!r} is invalid: give an origin such as https://hub.example, `local` for the "
                "pages of this machine, or `none`"
            )
    if "none" in settings.frame_ancestors:
        return ()
    return tuple(
        source for each in settings.frame_ancestors for source in (LOCAL_PAGES if each == "local" else (each,))
    )


def framed_headers(ancestors: tuple[str, ...]) -> Headers:
    """Return the headers of a framed page: the browser shows it only if every page around it is an allowed ancestor."""
    if not ancestors:
        return COMMON
    framed = HEADERS | {"content-security-policy": POLICY.format(f"'self' {' '.join(ancestors)}")}
    del framed["x-frame-options"]
    return [(name.encode(), value.encode()) for name, value in framed.items()]


def with_headers(send: Send, headers: Headers = COMMON) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", []))
            known = {name.lower() for name, _ in given}
            message = {**message, "headers": given + [pair for pair in headers if pair[0] not in known]}
        await send(message)

    return send_with_headers
