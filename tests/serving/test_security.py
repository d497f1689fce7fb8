"""Access to the server: every documented attack is tried."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from fastapi import Request
from starlette.websockets import WebSocketDisconnect

from hookcore.errors import ArgumentError
from hookcore_app import assets
from hookcore_app.serving.guard import access, security
from hookcore_app.serving.guard.access import Access
from hookcore_app.serving.guard.security import HEADERS
from hookcore_app.serving.server import complete
from hookcore_app.settings import ServerSettings
from tests.build import make_info
from tests.serving import (
    BEARER,
    PATIENCE_S,
    READ_TOKEN,
    TOKEN,
    World,
    make_batch,
    make_world,
    served,
)

READER = {"Authorization": f"Bearer {READ_TOKEN}"}
LINK = "/api/v1/login-link"
ORIGIN = "http://127.0.0.1:8642"


@pytest.fixture
def local() -> World:
    """Return a server on loopback, and a client that isn't known to be its user."""
    return make_world(token=TOKEN)


@pytest.fixture
def remote() -> World:
    """Return a server that other machines can reach."""
    return make_world(token=TOKEN, read_token=READ_TOKEN, host="0.0.0.0")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost:8642", "LOCALHOST", "[::1]:8642", "box.lan"])
def test_a_request_for_this_server_is_answered_on_any_port(host: str) -> None:
    world = make_world(allowed_hosts=("Box.lan",))
    assert world.client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.com", "127.0.0.1.evil.com", "127.0.0.1/foo?x=", "10.0.0.1", "", "a@127.0.0.1",
     "[::2]", "127.0.0.1:8642:1", "127.0.0.1 ", "0.0.0.0", "\x00"],
)  # fmt: skip
def test_a_request_that_names_another_host_is_refused(local: World, host: str) -> None:
    assert local.client.get("/healthz", headers={"host": host.encode()}).status_code == 400
    assert local.client.get("/", headers={"host": host.encode(), **BEARER}).status_code == 400


def test_a_server_on_every_address_accepts_addresses_but_no_foreign_name(remote: World) -> None:
    for host, status in (("192.168.1.7:8642", 200), ("[fe80::1]", 200), ("evil.example", 400), ("1.2.3", 400)):
        assert remote.client.get("/healthz", headers={"host": host}).status_code == status, host


def test_two_host_headers_or_none_are_refused() -> None:
    with served() as server:
        for hosts in ("Host: 127.0.0.1\nHost: 127.0.0.1\n", "Host: 127.0.0.1\nHost: evil.example\n", ""):
            assert server.ask(f"GET / HTTP/1.1\n{hosts}Connection: close").startswith(b"HTTP/1.1 400")
        assert server.get("/").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://127.0.0.1:8643", "http://localhost:8642", "file://127.0.0.1:8642",
     "http://127.0.0.1:8642.evil.com", "http://user@127.0.0.1:8642"],
)  # fmt: skip
@pytest.mark.parametrize("path", [LINK, "/api/v1/ingest", "/login", "/healthz"])
def test_a_page_of_another_origin_cannot_change_anything_even_with_a_token(
    local: World, origin: str, path: str
) -> None:
    response = local.client.post(path, headers={"origin": origin, **BEARER})
    assert response.status_code == 403
    assert "cross-origin" in response.json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/api/v1/live", "/api/v1/socket"])
def test_a_page_of_another_origin_cannot_subscribe(local: World, origin: str, path: str) -> None:
    assert local.client.get(path, headers={"origin": origin, **BEARER}).status_code == 403


def test_pages_of_this_server_can_change_things_even_behind_a_proxy_for_tls(local: World) -> None:
    for origin in (ORIGIN, "https://127.0.0.1:8642", "HTTP://127.0.0.1:8642"):
        headers = {"origin": origin, "sec-fetch-site": "same-origin", **BEARER}
        assert local.client.post(LINK, headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
@pytest.mark.parametrize("mode", ["no-cors", "cors", "navigate", "websocket"])
@pytest.mark.parametrize("path", ["/api/v1/openapi.json", "/api/v1/live"])
def test_a_cross_site_request_of_a_browser_gets_no_data(local: World, site: str, mode: str, path: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": "document"}
    assert local.client.get(path, headers=headers).status_code == 403
    assert local.client.post(LINK, headers={**headers, **BEARER}).status_code == 403


def test_a_link_from_another_site_opens_a_page_but_an_image_or_a_frame_does_not(local: World) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert local.client.get("/", headers=headers).status_code == 200
    assert local.client.post("/", headers=headers).status_code == 403
    assert local.client.get("/", headers={**headers, "sec-fetch-dest": "iframe"}).status_code == 403
    assert (
        local.client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403
    )


FRAMED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}


@pytest.mark.parametrize(
    ("ancestors", "told"),
    [
        (("https://hub.example",), "'self' https://hub.example;"),
        (("local",), "'self' http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*;"),
    ],
)
def test_a_server_with_frame_ancestors_can_be_framed_only_by_those(ancestors: tuple[str, ...], told: str) -> None:
    client = make_world(token=TOKEN, frame_ancestors=ancestors).client
    framed = client.get("/", headers=FRAMED)
    assert framed.status_code == 200
    assert f"frame-ancestors {told}" in framed.headers["content-security-policy"]
    assert "x-frame-options" not in framed.headers
    assert (
        framed.headers["cache-control"] == "private, no-store"
    )  # a page sent without buttons is not shown outside a frame
    for headers in ({}, {**FRAMED, "sec-fetch-dest": "document"}):  # nor in a browser that doesn't send that header
        page = client.get("/", headers=headers)
        assert page.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none';" in page.headers["content-security-policy"]
    for path in ("/api/v1/runs", "/login?code=x"):
        assert client.get(path, headers=FRAMED).status_code == 403
    assert client.post(LINK, headers={**FRAMED, **BEARER}).status_code == 403


def test_a_page_in_a_frame_has_no_buttons_even_for_the_owner() -> None:
    client = make_world(token=TOKEN, frame_ancestors=("local",)).client
    assert 'data-may-change="yes"' in client.get("/", headers=BEARER).text
    for site in ("cross-site", "same-site", "same-origin", "none"):
        framed = client.get("/", headers={**FRAMED, **BEARER, "sec-fetch-site": site})
        assert 'data-may-change="no"' in framed.text


@pytest.mark.parametrize("ancestors", [(), ("none",), ("none", "https://hub.example")])
def test_a_server_without_frame_ancestors_cannot_be_framed(ancestors: tuple[str, ...]) -> None:
    client = make_world(frame_ancestors=ancestors).client
    assert client.get("/", headers=FRAMED).status_code == 403
    same = client.get("/", headers={**FRAMED, "sec-fetch-site": "same-origin"})
    assert "frame-ancestors 'none';" in same.headers["content-security-policy"]


@pytest.mark.parametrize("wrong", ["https://hub.example; script-src *", "hub.example", "*", "https://a b", "x\r\ny:"])
def test_an_ancestor_that_is_not_an_origin_is_refused_when_the_server_starts(wrong: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(ArgumentError, match=r"give an origin such as https://hub\.example"),
    ):
        complete(ServerSettings(frame_ancestors=(wrong,)), listening)


def test_a_users_own_dashboard_can_be_framed_by_local_pages_unless_set_otherwise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for given, ancestors in (((), ("local",)), (("none",), ("none",))):
            settings = ServerSettings(dashboard=True, frame_ancestors=given)
            assert complete(settings, listening).frame_ancestors == ancestors
        assert complete(ServerSettings(), listening).frame_ancestors == ()


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}, {"sec-fetch-site": "same-site"}],
)
def test_a_websocket_of_another_origin_is_closed_before_it_opens(local: World, headers: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as told,
        local.client.websocket_connect("ws://127.0.0.1:8642/api/v1/socket", headers=headers),
    ):
        pass
    assert told.value.code == 1008


def test_a_websocket_without_a_token_is_closed_on_a_remote_server(remote: World) -> None:
    with pytest.raises(WebSocketDisconnect), remote.client.websocket_connect("ws://127.0.0.1:8642/api/v1/socket"):
        pass


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/openapi.json", "/metrics", "/readyz", "/static/app.css", "/docs/", "/api/v1/live"]
)
def test_a_remote_server_shows_nothing_without_a_token(remote: World, path: str) -> None:
    for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": ""}):
        response = remote.client.get(path, headers=shown)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    assert remote.client.get("/healthz").status_code == 200


def test_the_token_permits_everything_and_the_read_only_one_no_changes(remote: World) -> None:
    for shown in (BEARER, READER):
        assert remote.client.get("/", headers=shown).status_code == 200
    assert remote.client.post(LINK, headers=BEARER).status_code == 200
    refused = remote.client.post(LINK, headers=READER)
    assert (refused.status_code, "full-access" in refused.json()["error"]) == (403, True)


def test_on_loopback_reading_is_free_and_changes_need_the_user_or_the_token(local: World) -> None:
    assert local.client.get("/").status_code == 200
    assert local.client.post(LINK).status_code == 403
    assert local.client.post(LINK, headers=BEARER).status_code == 200
    refused = local.client.get("/", headers={"Authorization": "Bearer wrong"})
    assert refused.status_code == 401
    assert "invalid token" in refused.text


def test_a_read_only_token_restricts_reading_on_loopback_too() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN)
    assert world.client.get("/").status_code == 401
    assert world.client.get("/", headers=READER).status_code == 200


def test_the_servers_user_needs_no_token_unless_a_proxy_may_be_in_between() -> None:
    post = f"POST {LINK} HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0\nConnection: close"
    with served() as server:
        assert server.ask(post).startswith(b"HTTP/1.1 200")
        for header in ("X-Forwarded-For: 10.0.0.9", "Forwarded: for=10.0.0.9", "Via: 1.1 proxy", "X-Real-IP: 10.0.0.9"):
            assert server.ask(f"{post}\n{header}").startswith(b"HTTP/1.1 401")
            assert server.ask(f"{post.replace('POST', 'GET')}\n{header}").startswith(b"HTTP/1.1 401")
        assert server.ask(f"{post}\nAuthorization: Bearer wrong").startswith(b"HTTP/1.1 401")


def test_the_user_is_recognized_over_ipv6_and_again_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def user_of(*ends: Any) -> int | None:
        asked.append(ends)
        return access.user_of(*ends)

    monkeypatch.setattr(security, "user_of", user_of)
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with served(host="::1") as server:
        for _ in range(2):
            with closing(HTTPConnection("::1", server.port, timeout=PATIENCE_S)) as connection:
                for _ in range(3):
                    connection.request("POST", LINK)
                    answer = connection.getresponse()
                    assert answer.status == 200
                    assert answer.read()
    assert len(asked) == 2


def test_the_peer_of_a_missing_connection_is_unknown() -> None:
    with served() as server, server.connect() as connection:
        here, there = connection.getsockname(), connection.getpeername()
        assert access.user_of(here, there) == os.getuid()
        for stranger in ((here[0], here[1] ^ 1), ("testclient", 1), None):
            assert access.user_of(stranger, there) is None


def test_a_form_cannot_change_anything_as_the_user(local: World) -> None:
    cookie = _log_in(local)
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"):
        response = local.client.post(LINK, content=b"{}", headers={"content-type": kind, "cookie": cookie})
        assert response.status_code == 415
    assert local.client.post(LINK, json={}, headers={"cookie": cookie}).status_code == 200


def _log_in(world: World, role: access.Role = "owner") -> str:
    code = world.app.state.access.make_code(role)
    answer = world.client.get(f"/login?code={code}", follow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].partition(";")[0]
    world.client.cookies.clear()
    return cookie


def test_a_link_logs_a_browser_in_once_and_leaves_a_clean_url(remote: World) -> None:
    link = remote.client.post(LINK, headers=BEARER).json()["url"]
    assert re.fullmatch(r"http://127\.0\.0\.1:8642/login\?code=[\w-]{43}", link)
    answer = remote.client.get(link, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    flags = answer.headers["set-cookie"].lower()
    assert flags.startswith(f"{remote.app.state.access.cookie}=")
    for flag in ("httponly", "samesite=strict", "path=/"):
        assert flag in flags
    assert TOKEN not in flags
    assert answer.headers["cache-control"] == "private, no-store"
    assert remote.client.get("/").status_code == 200  # the client keeps cookies
    remote.client.cookies.clear()
    assert remote.client.get("/").status_code == 401
    assert remote.client.get(link).status_code == 403


def test_a_browser_that_prefetches_does_not_use_up_a_link(remote: World) -> None:
    link = remote.client.post(LINK, headers=BEARER).json()["url"]
    assert remote.client.get(link, headers={"sec-purpose": "prefetch;prerender"}).status_code == 403
    assert remote.client.get(link, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("code", ["", "x", "x" * 43, "..", "%00"])
def test_an_unknown_code_is_refused(remote: World, code: str) -> None:
    assert remote.client.get(f"/login?code={code}").status_code == 403
    assert remote.client.get("/login").status_code == 403


def test_a_read_only_link_gives_a_browser_that_can_change_nothing(remote: World) -> None:
    cookie = _log_in(remote, "reader")
    for sent in (cookie, f'jupyter="{{}}; a=[1]; {cookie}; hookcore-1=other', f"x; {cookie};y={'z' * 5000}"):
        assert remote.client.get("/", headers={"cookie": sent}).status_code == 200
    assert remote.client.post(LINK, headers={"cookie": cookie}).status_code == 403


def test_a_changed_cookie_or_one_for_another_port_or_token_is_invalid(remote: World) -> None:
    reader = _log_in(remote, "reader")
    name, _, value = reader.partition("=")
    others = [
        f"{name}={value[:-1]}{'0' if value[-1] != '0' else '1'}",
        f"{name}={value[:-1]}",
        f"hookcore-1={value}",
        f"__Host-{name}={value}",
        f"__Secure-{name}={value}",
        f"{name}=owner",
        f"{name}=é.ü.ö",
        f"{name}={'x' * 5000}",
    ]
    for cookie in others:
        assert remote.client.get("/", headers={"cookie": cookie.encode("latin-1")}).status_code == 401, cookie
    elsewhere = make_world(token="s" * 40, host="0.0.0.0")
    renamed = f"{elsewhere.app.state.access.cookie}={value}"
    for cookie in (reader, renamed):
        assert elsewhere.client.get("/", headers={"cookie": cookie}).status_code == 401
    assert remote.client.get("/", headers={"cookie": reader}).status_code == 200


def test_codes_and_sessions_expire_and_codes_are_few() -> None:
    now = [1000.0]
    known = Access(ServerSettings(token=TOKEN, host="0.0.0.0"), lambda: now[0])
    code = known.make_code()
    cookie = f"{known.cookie}={known.open_session('owner')}".encode()
    now[0] += access.CODE_S + 1
    assert known.take_code(code) is None
    assert known.know({b"cookie": cookie}, lambda: False, False) == access.Visitor("owner", "cookie")
    for _ in range(6):  # a used session stays open, but not forever
        now[0] += access.IDLE_S - 1
        assert known.know({b"cookie": cookie}, lambda: False, False) is not None
    now[0] += access.IDLE_S - 1
    assert known.know({b"cookie": cookie}, lambda: False, False) is None
    unused = f"{known.cookie}={known.open_session('owner')}".encode()
    now[0] += access.IDLE_S
    assert known.know({b"cookie": unused}, lambda: False, False) is None
    oldest = known.make_code()
    for _ in range(access.MAX_CODES):
        known.make_code()
    assert known.take_code(oldest) is None


def test_a_stolen_cookie_is_worthless_to_another_user_or_machine() -> None:
    for settings in (ServerSettings(token=TOKEN, read_token=READ_TOKEN), ServerSettings(token=TOKEN, host="0.0.0.0")):
        known = Access(settings)
        cookie = f"{known.cookie}={known.open_session('owner', 'user 1000')}".encode()
        stolen = known.know({b"cookie": cookie}, lambda: False, True, lambda: "user 1001")
        assert stolen is None
        own = known.know({b"cookie": cookie}, lambda: False, True, lambda: "user 1000")
        assert own == access.Visitor("owner", "cookie")


def test_a_session_is_bound_to_its_peer() -> None:
    here, there = ServerSettings(token=TOKEN), ServerSettings(token=TOKEN, host="0.0.0.0")
    scope: dict[str, Any] = {"scheme": "http", "client": ("10.0.0.7", 5), "server": ("10.0.0.1", 8642)}
    assert security.peer_of(scope, there) == "address 10.0.0.7"
    assert security.peer_of({**scope, "scheme": "https"}, there) == ""
    with served() as server, server.connect() as connection:
        ends = {"client": connection.getsockname(), "server": connection.getpeername()}
        assert security.peer_of({**scope, **ends}, here) == f"user {os.getuid()}"


def test_over_tls_the_cookie_has_a_name_that_no_other_server_can_set() -> None:
    world = make_world(token=TOKEN, host="0.0.0.0")
    https = {"x-forwarded-proto": "https"}
    code = world.app.state.access.make_code()
    answer = world.client.get(f"/login?code={code}", headers=https, follow_redirects=False)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert cookie.startswith(f"__Host-{world.app.state.access.cookie}=")
    assert "; secure" in answer.headers["set-cookie"].lower()
    world.client.cookies.clear()
    assert world.client.get("/", headers={"cookie": cookie, **https}).status_code == 200
    plain = cookie.removeprefix("__Host-")
    assert world.client.get("/", headers={"cookie": plain, **https}).status_code == 401


def test_logging_out_ends_one_session_and_the_owner_can_end_all(remote: World) -> None:
    owner, reader, other = _log_in(remote), _log_in(remote, "reader"), _log_in(remote, "reader")
    code = remote.app.state.access.make_code()
    refused = remote.client.post(f"{security.LOGOUT}?everyone=true", headers={"cookie": reader})
    assert refused.status_code == 403
    assert remote.client.post(security.LOGOUT, headers={"cookie": reader}).json() == {"sessions": 1}
    assert [remote.client.get("/", headers={"cookie": each}).status_code for each in (owner, reader, other)] == [
        200,
        401,
        200,
    ]
    crossed = {"cookie": other, "origin": "http://evil.example"}
    assert remote.client.post(security.LOGOUT, headers=crossed).status_code == 403
    assert remote.client.post(f"{security.LOGOUT}?everyone=true", headers=BEARER).json() == {"sessions": 2}
    assert [remote.client.get("/", headers={"cookie": each}).status_code for each in (owner, other)] == [401, 401]
    assert remote.client.get(f"/login?code={code}").status_code == 403


@pytest.mark.parametrize(
    ("kind", "message", "last"),
    [
        ("websocket", {"type": "websocket.send", "bytes": b"x"}, {"type": "websocket.close", "code": 1008}),
        ("http", {"type": "http.response.body", "body": b"x", "more_body": True}, {"body": b"", "more_body": False}),
    ],
)
def test_the_streams_of_a_browser_end_when_it_is_logged_out(
    kind: str, message: dict[str, Any], last: dict[str, Any]
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def follow() -> None:
        known = Access(ServerSettings(token=TOKEN, host="0.0.0.0"))
        cookie = f"{known.cookie}={known.open_session('reader')}".encode()
        scope = {"type": kind, "hookcore": known.know({b"cookie": cookie}, lambda: False, False)}
        stream = security.while_logged_in(send, scope, known)
        await stream(message)
        known.end_all_sessions()
        await stream(message)
        await stream(message)

    asyncio.run(follow())
    assert sent[0] == message
    assert last.items() <= sent[1].items()
    assert len(sent) == 2


def test_sessions_are_limited_and_the_longest_unused_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_SESSIONS", 2)
    now = [1000.0]
    known = Access(ServerSettings(token=TOKEN, host="0.0.0.0"), lambda: now[0])
    cookies = []
    for _ in range(3):
        cookies.append(f"{known.cookie}={known.open_session('reader')}".encode())
        now[0] += 1
        known.know({b"cookie": cookies[0]}, lambda: False, False)
    found = [known.know({b"cookie": cookie}, lambda: False, False) is not None for cookie in cookies]
    assert found == [True, False, True]


def test_a_remote_application_is_not_created_without_a_token() -> None:
    with pytest.raises(ArgumentError, match="there is no token"):
        make_world(host="0.0.0.0")


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/app.css", "/nowhere", "/api/v1/openapi.json", "/login"])
def test_every_answer_forbids_foreign_scripts_framing_and_sniffing(local: World, path: str) -> None:
    headers = local.client.get(path).headers
    for name, value in HEADERS.items():
        assert headers[name] == value
    assert "script-src 'self';" in headers["content-security-policy"]
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/settings",
        "/help",
        "/compare",
        "/metrics",
        "/readyz",
        "/api/v1/runs",
        "/api/v1/report",
        "/static/x/y",
        "/docs/",
    ],
)
def test_no_shared_cache_keeps_a_private_answer(path: str) -> None:
    client = make_world(token=TOKEN, read_token=READ_TOKEN).client
    for headers in ({}, BEARER):
        told = client.get(path, headers=headers).headers["cache-control"].split(", ")
        assert "private" in told
        assert not {"no-store", "no-cache"}.isdisjoint(told)


@pytest.mark.parametrize(
    "name", ["x" * 990, "x" * 5000, "a/" * 400, "%00", "%ff", "joined/" + "x" * 990 + ".js", "..", "."]
)
def test_a_missing_file_is_a_404_whatever_its_name(local: World, name: str) -> None:
    assert local.client.get(f"/static/x/{name}").status_code == 404


def test_names_of_missing_files_are_not_cached(local: World) -> None:
    for number in range(assets.MAX_NAMES + 10):
        assert assets.read(f"nothing-{number}") is None
    assert assets.read.cache_info().currsize <= assets.MAX_NAMES


def test_refusals_and_crashes_have_the_same_headers(local: World) -> None:
    @local.app.get("/crash")
    def crash() -> None:
        raise RuntimeError("a secret of the server's")

    crashed = local.client.get("/crash")
    assert (crashed.status_code, "secret" in crashed.text) == (500, False)
    for response in (crashed, local.client.get("/", headers={"host": "evil"}), local.client.post(LINK)):
        assert response.headers["x-frame-options"] == "DENY"
        assert list(response.json()) == ["error"]


def test_a_preflight_of_another_origin_gets_no_permission(local: World) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = local.client.options(LINK, headers=headers)
    assert response.status_code >= 400
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "path",
    ["/static/%2e%2e/files.py", "/static/..%2ffiles.py", "/static//etc/passwd", "/static/%2fetc/passwd",
     "/static/..\\files.py", "/runs/..%2f..%2fetc%2fpasswd", "/runs/%2e%2e", "/runs/%00",
     "/static/%00", "/static/app.css%00.py", "/docs/%2e%2e/", "/docs/..%2fassets.py", "/docs//etc/passwd", "/docs/%00"],
)  # fmt: skip
def test_no_path_leads_out_of_the_served_folders(path: str) -> None:
    with served() as server:
        status = server.get(path).split(b" ")[1]
    assert status in (b"400", b"404")


def test_addresses_and_headers_have_a_limit(local: World) -> None:
    assert local.client.get("/?" + "x" * 9000).status_code == 414
    assert local.client.get("/", headers={"x-long": "x" * 40_000}).status_code == 431
    assert local.client.get("/", headers=[(f"x-{n}", "1") for n in range(101)]).status_code == 431


def test_the_body_of_a_request_is_bounded(local: World) -> None:
    @local.app.put("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    for size, status in ((security.MAX_BODY, 200), (security.MAX_BODY + 1, 413)):
        assert local.client.put("/echo", content=b" " * size, headers=BEARER).status_code == status


def test_json_that_is_nested_too_deeply_is_refused_with_that_reason(local: World) -> None:
    told = local.client.put(
        "/api/v1/views", content="[" * 100_000, headers=BEARER | {"content-type": "application/json"}
    )
    assert (told.status_code, told.json()["error"][:31]) == (400, "the body is nested too deeply: ")


def test_a_catastrophic_expression_is_answered_quickly(local: World) -> None:
    local.post(make_batch(make_info(), [0], taps=50), **BEARER)
    for pattern in ("re:(a+)+$", "re:(layer|layer.|l.*)*x{1,50}y", "re:((.*)*)*!", "*" * 900 + "x"):
        for path, more in (("/runs/one", {}), ("/api/v1/taps", {}), ("/api/v1/heatmap", {"stat": "mean"})):
            asked = {"match": pattern, "kind": "output", **more}
            assert local.client.get(path, params=asked).status_code in (200, 400)


def test_the_key_of_a_run_and_the_tokens_are_in_no_answer() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN)
    key = "a key that nobody else knows"
    world.post(make_batch(make_info(key=key), [0]), **BEARER)
    for path in world.client.get("/api/v1/openapi.json", headers=BEARER).json()["paths"]:
        if path == "/api/v1/live":
            continue
        text = world.client.get(path.replace("{run}", "one"), headers=BEARER).text
        assert not [secret for secret in (key, TOKEN, READ_TOKEN) if secret in text], path


def test_neither_a_token_nor_a_cookie_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with served(read_token=READ_TOKEN) as server:
        code = server.app.state.access.make_code()
        cookie = server.app.state.access.open_session("owner")
        server.get(f"/login?code={code}")
        head = "GET / HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n"
        server.ask(f"{head}Authorization: Bearer {TOKEN}")
        server.ask(f"{head}Cookie: {server.app.state.access.cookie}={cookie}")
    for secret in (TOKEN, READ_TOKEN, code, cookie):
        assert secret not in caplog.text
