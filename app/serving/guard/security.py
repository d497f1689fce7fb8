"""The guard decides which requests reach the application: others are rejected, and what a route would ignore."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookcore.config import nearest
from hookcore.delivery.dashboard.trust import PROOF_PATH
from hookcore.errors import ArgumentError
from hookcore.platform import user_id

from ...runs import Runs
from ...runs.run import Run
from ...settings import LOOPBACK, ServerSettings
from .access import Access, Places, Usage, Visitor, user_of

# Checks the query parameters and bodies of API requests. What its route would ignore is rejected.
#
# Routers of the API have `ONLY_KNOWN`. Those of pages don't, so that a shared link opens whatever a chat added to it.

MAX_NAMES: Final = 5  # of an error
MAX_NAME: Final = 100  # characters


def parameters_of(dependant: Dependant) -> dict[str, bool]:
    """Return the parameters that a route reads from the query, and whether each can be repeated."""
    known: dict[str, bool] = {}
    for dependency in dependant.dependencies:
        known |= parameters_of(dependency)
    return known | {param.alias: is_list(param.field_info.annotation) for param in dependant.query_params}


def is_list(annotation: Any) -> bool:
    """Return whether a parameter can be repeated."""
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


async def _check(connection: HTTPConnection) -> None:
    """Refuse a query with a parameter that its route doesn't know, or reads only once, and a body that it ignores."""
    if isinstance(connection, Request) and connection.method == "POST":
        await _check_body(connection)
    given = Counter(name for name, _ in connection.query_params.multi_items())
    if not given:
        return
    dependant: Dependant = connection.scope["route"].dependant
    known = parameters_of(dependant)
    strange = [name for name in given if name not in known]
    wrong = (_misplaced(strange, dependant) if strange else "") or what_is_wrong(given, known)
    if wrong:
        raise HTTPException(422, wrong)


async def _check_body(request: Request) -> None:
    route = request.scope["route"]
    reads_it = route.dependant.body_params or (route.openapi_extra or {}).get("requestBody")
    if not reads_it and (await request.body()).strip() not in (b"", b"{}"):
        raise HTTPException(422, f"POST {request.url.path} reads no body: send none")


def what_is_wrong(given: Mapping[str, int], known: Mapping[str, bool]) -> str | None:
    """Return why parameters are refused, by how often each is given; None if they aren't.

    `known` are the allowed ones, and whether each can be repeated.
    """
    strange = [name for name in given if name not in known]
    if strange:
        return _unknown(strange, known)
    often = next((name for name, times in given.items() if times > 1 and not known[name]), None)
    return None if often is None else f"{often}= is given {given[often]} times: only one value is allowed. Give it once"


def _misplaced(names: list[str], dependant: Dependant) -> str:
    """Return an error if a name is a field of the body. Left out, it would have its default there."""
    bodies = [getattr(param.field_info.annotation, "model_fields", {}) for param in dependant.body_params]
    found = next((name for name in names for fields in bodies if name in fields), None)
    return f"{found}= is not a parameter of this address: send it in the JSON body" if found is not None else ""


def _unknown(names: list[str], known: Iterable[str]) -> str:
    """Return an error with names only: a value may be a token."""
    shown = [name[:MAX_NAME] for name in names[:MAX_NAMES]]
    near = dict.fromkeys(repr(each) for name in shown for each in nearest(name, known, limit=1))
    hint = f"; did you mean {', '.join(near)}?" if near else "."
    what = "parameter" if len(shown) == 1 else "parameters"
    allowed = f"{', '.join(known)}. Use one of these, or leave it out" if known else "none. Leave it out"
    return f"unknown {what} {', '.join(map(repr, shown))}{hint} Allowed: {allowed}"


ONLY_KNOWN: Final = Depends(_check)


# The headers of all responses, and which pages of other sites may show the dashboard in a frame.

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
    for ancestor in settings.frame_ancestors:
        if not _ANCESTOR.fullmatch(ancestor):
            raise ArgumentError(
                f"frame_ancestors={ancestor!r} is invalid: give an origin such as https://hub.example, `local` for the "
                "pages of this machine, or `none`"
            )
    if "none" in settings.frame_ancestors:
        return ()
    return tuple(
        source
        for ancestor in settings.frame_ancestors
        for source in (LOCAL_PAGES if ancestor == "local" else (ancestor,))
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


# Rejected requests, and how they are answered.

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class RefusedError(Exception):
    """A rejected request: its status, and a sentence that says what to do."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


async def refuse(scope: Scope, send: Send, refusal: RefusedError) -> None:
    """Answer a rejected request."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.sentence[:120]})
        return
    body, kind = _body_of(scope, refusal)
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["method"] not in SAFE_METHODS:
        headers.append((b"connection", b"close"))  # the body was not read
    await with_headers(send)({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _body_of(scope: Scope, refusal: RefusedError) -> tuple[bytes, bytes]:
    accepts = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    if refusal.status == 401 and b"text/html" in accepts:
        return LOGIN_NEEDED.encode(), b"text/html; charset=utf-8"
    return json.dumps({"error": refusal.sentence}).encode(), b"application/json"


# The link is followed from this server's own page, so a browser that came from another site sends its cookie.
LOGIN_NEEDED: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>Log in - hookcore</title>
<h1>Log in</h1>
<p>Open the login link that the server printed at startup, or create one with <code>hookcore link</code>.</p>
<p>Already logged in with this browser? <a href="">Continue</a>.</p>
</html>
"""


# The guard that decides which requests reach the application. Pure ASGI; it reads no bodies.

MAX_URL: Final = 8192
MAX_HEADER_BYTES: Final = 32_768
MAX_HEADERS: Final = 100
MAX_BODY: Final = 2**20  # of a request of a reader; batches have their own limit
INGEST: Final = "/api/v1/ingest"
LOGOUT: Final = "/api/v1/logout"
STREAMS: Final = frozenset({"/api/v1/live", "/api/v1/socket"})
WITHOUT_TOKEN: Final = frozenset({"/healthz", "/login", PROOF_PATH})
AGENTS: Final = "/mcp"  # a question has a body there, and what may change something looks for an owner itself
UNNOTICED: Final = frozenset({"/healthz", "/readyz", "/metrics", PROOF_PATH})  # don't count as use
PEER: Final = "hookcore_peer"
OWNER: Final = "owner"  # a fact about a peer
FORM_TYPES: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?")
NO_TOKEN: Final = "this server requires a token: send it as `Authorization: Bearer TOKEN`, or log in"
UNKNOWN_TOKEN: Final = "invalid token: use the token that this server was started with, or log in"


class Guard:
    """ASGI middleware with the same rules for requests and WebSockets."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, access: Access, usage: Usage) -> None:
        self.app = app
        self._settings, self._access, self._usage = settings, access, usage
        self._hosts = allowed_hosts(settings)
        self._ancestors = ancestors_of(settings)
        self._framed_headers = framed_headers(self._ancestors)
        self._places = Places(settings.max_connections)  # of requests that are being answered, without streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        _place(scope)
        path = path_of(scope)
        try:
            scope["hookcore"] = visitor = self._judge(scope, path)
            reader = self._reader_of(scope, visitor)
            if path not in STREAMS and visitor is not None and self._places.is_full(reader):
                raise RefusedError(503, "too many requests of readers are being answered: try again in a moment")
        except RefusedError as refusal:
            await refuse(scope, send, refusal)
            return
        if path == INGEST:
            self._usage.note_trainer()
        counted = nullcontext() if path == INGEST or path in UNNOTICED else self._usage.reading()
        placed = nullcontext() if path in STREAMS else self._places.hold(reader)
        if path in STREAMS:
            send = while_logged_in(send, scope, self._access)
        with counted, placed:
            if scope["type"] == "websocket":
                await self.app(scope, receive, send)
            else:
                limit = self._settings.max_body if path == INGEST else MAX_BODY
                headers = self._framed_headers if is_framed(scope) else COMMON
                await self.app(scope, _bounded(receive, limit), with_headers(send, headers))

    @staticmethod
    def _reader_of(scope: Scope, visitor: Visitor | None) -> str | None:
        """Return the address of a reader. An owner has none, and an owner's connection is closed last."""
        if visitor is None or visitor.role != "owner":
            return str((scope.get("client") or ("somewhere",))[0])
        scope.get("state", {}).get(PEER, {})[OWNER] = 1
        return None

    def _judge(self, scope: Scope, path: str) -> Visitor | None:
        _check_size(scope)
        headers = dict(scope["headers"])
        host = self._check_host([value for name, value in scope["headers"] if name == b"host"])
        has_body = scope["type"] == "http" and scope["method"] not in SAFE_METHODS
        changes = has_body and path != AGENTS
        _check_fetch_metadata(scope, path, headers, bool(self._ancestors))
        if has_body or path in STREAMS:
            _check_origin(scope, headers, host)
        if path in WITHOUT_TOKEN and not changes:
            return None
        visitor = self._access.know(headers, lambda: _is_user(scope), changes, lambda: peer_of(scope, self._settings))
        if visitor is None:
            raise RefusedError(401, UNKNOWN_TOKEN if b"authorization" in headers else NO_TOKEN)
        if changes and path != LOGOUT:
            _check_change(visitor, headers, path)
        return visitor

    def _check_host(self, given: list[bytes]) -> str:
        if len(given) != 1:
            raise RefusedError(400, f"a request must have one Host header, not {len(given)}")
        text = given[0].decode("latin-1").lower()
        found = _HOST.fullmatch(text)
        name = found[1].strip("[]") if found else ""
        if name in self._hosts or (self._settings.host in ANY_ADDRESS and _is_address(name)):
            return text
        # DNS rebinding: a foreign page can give this machine's address its own name, so unknown names get no answer.
        raise RefusedError(400, "host not allowed: use 127.0.0.1, or add the host name to allowed_hosts")


def allowed_hosts(settings: ServerSettings) -> frozenset[str]:
    """Return the host names that requests may use. Ports don't matter, because tunnels change them."""
    names: Iterable[str] = (*LOOPBACK, settings.host, *settings.allowed_hosts)
    if settings.host in ANY_ADDRESS:
        names = (*names, socket.gethostname())
    return frozenset(name.lower().strip("[]") for name in names if name not in ANY_ADDRESS)


def path_of(scope: Scope) -> str:
    """Return the path below the proxy's prefix."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _place(scope: Scope) -> None:
    """Restore what a proxy changed: the scheme, and the path prefix.

    Anyone can claim https; the only effect of a false claim is a cookie that their own browser doesn't send. A prefix
    that the proxy didn't strip appears twice, because uvicorn adds it, so both forms of the address work.
    """
    if dict(scope["headers"]).get(b"x-forwarded-proto", b"").lower() in (b"https", b"wss"):
        scope["scheme"] = "wss" if scope["type"] == "websocket" else "https"
    root = scope.get("root_path", "")
    if root and scope["path"].startswith(f"{root}{root}/"):
        scope["path"] = scope["path"][len(root) :]


def _is_user(scope: Scope) -> bool:
    return _user_of(scope) == user_id()


def _user_of(scope: Scope) -> int | None:
    """Return the user at the other end, looked up once per connection."""
    peer: dict[str, int | None] = scope.get("state", {}).get(PEER, {})
    if "user" not in peer:
        peer["user"] = user_of(scope.get("client"), scope.get("server"))
    return peer["user"]


def peer_of(scope: Scope, settings: ServerSettings) -> str:
    """Return what all connections of one browser share: the user on this machine, or the address elsewhere.

    Empty over TLS: browsers then send the cookie only to a server with the certificate, and laptops change networks.
    """
    if settings.is_loopback:
        return f"user {_user_of(scope)}"
    return "" if scope["scheme"] in ("https", "wss") else f"address {(scope.get('client') or ('',))[0]}"


def may_change(scope: Scope, access: Access) -> bool:
    """Return whether the page gets buttons that change things.

    It never does in a frame, because the surrounding page could trick the user into clicking one.
    """
    return not is_framed(scope) and is_owner(scope, access)


def is_owner(scope: Scope, access: Access) -> bool:
    """Return whether the request comes from an owner."""
    visitor = access.know(
        dict(scope["headers"]), lambda: _is_user(scope), True, lambda: peer_of(scope, access.settings)
    )
    return visitor is not None and visitor.role == "owner"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_size(scope: Scope) -> None:
    if len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b"")) > MAX_URL:
        raise RefusedError(414, f"the address is longer than {MAX_URL} characters: split the request")
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise RefusedError(431, f"the headers exceed {MAX_HEADER_BYTES} bytes, or their number exceeds {MAX_HEADERS}")


def _check_fetch_metadata(scope: Scope, path: str, headers: dict[bytes, bytes], may_frame: bool) -> None:
    """Check where the browser says a request comes from. Other sites may only link to a page, or frame it if the
    settings allow that site."""
    site = headers.get(b"sec-fetch-site", b"none")
    if site in (b"none", b"same-origin"):
        return
    is_link = (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and (headers.get(b"sec-fetch-dest") == b"document" or (may_frame and is_framed(scope) and path != "/login"))
    )
    if not is_link or path.startswith("/api/"):
        raise RefusedError(403, "cross-origin request denied: only this server's own pages may send it")


def _check_origin(scope: Scope, headers: dict[bytes, bytes], host: str) -> None:
    origin = headers.get(b"origin")
    if origin is None:
        return
    parts = urlsplit(origin.decode("latin-1").lower())
    secure = scope["scheme"] in ("https", "wss")
    # A proxy that ends TLS may not report it. A secure page of the same host is never foreign.
    if parts.netloc != host or parts.scheme not in (("https",) if secure else ("http", "https")):
        raise RefusedError(403, "cross-origin request denied: only this server's own pages may send it")


def _check_change(visitor: Visitor, headers: dict[bytes, bytes], path: str) -> None:
    if visitor.role != "owner":
        raise RefusedError(403, "this needs the full-access token: send it as `Authorization: Bearer TOKEN`, or log in")
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if path != INGEST and visitor.how != "token" and kind in FORM_TYPES:
        # Any page can submit a form, but a form can't send JSON.
        raise RefusedError(415, f"unsupported body type {kind}: send application/json")


def _bounded(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(
                413, f"the body is larger than {limit} bytes: split the request", {"Connection": "close"}
            )
        return message

    return receive_bounded


def while_logged_in(send: Send, scope: Scope, access: Access) -> Send:
    """End a stream together with its browser's session."""
    visitor: Visitor | None = scope["hookcore"]
    if visitor is None or not visitor.session:
        return send
    session, is_over = visitor.session, False

    async def send_while_logged_in(message: Message) -> None:
        nonlocal is_over
        if is_over:
            return
        if access.has_session(session) or message["type"].endswith((".start", ".accept")):
            await send(message)
            return
        is_over = True
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "logged out"})
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_while_logged_in


# The header of an answer of a server with a store: which data is missing because a shard can't be reached.

PARTIAL: Final = "hookcore-partial"
MAX_CHARACTERS: Final = 1000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STALE: Final = frozenset({b"etag", b"cache-control"})  # such an answer must not be taken for the whole one later


class Partial:
    """ASGI middleware: adds the header where it is true, and keeps clients from storing the answer."""

    def __init__(self, app: ASGIApp, runs: Runs) -> None:
        self._app, self._runs = app, runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and check at the end what was missing."""
        if scope["type"] != "http" or "/static/" in scope["path"]:
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and (text := self._missing(scope)):
                kept = [each for each in message.get("headers", []) if each[0].lower() not in _STALE]
                message = {**message, "headers": [*kept, (PARTIAL.encode(), text)]}
            await send(message)

        await self._app(scope, receive, send_marked)

    def _missing(self, scope: Scope) -> bytes:
        asked = [self._runs.partial, *dict.fromkeys(run.partial for run in self._asked(scope))]
        text = " ".join(" ".join(filter(None, asked)).split())
        return text.encode("ascii", "replace")[:MAX_CHARACTERS]

    def _asked(self, scope: Scope) -> Iterator[Run]:
        """Yield the runs that an address names, or the newest one, which is meant if it names none."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        names = [*scope["path"].split("/"), *(value for _, value in query)]
        found = [run for name in names if _ID.fullmatch(name) and (run := self._runs.get(name)) is not None]
        yield from found or self._runs.all()[:1]
