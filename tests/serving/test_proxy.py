"""Behind nginx, as in docs/docker.md, with a path prefix and TLS, everything works as it does without nginx."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from hookcore import Client, ServerError
from hookcore_app import cli
from tests.proxying import NAME, PREFIX, Proxied, proxied
from tests.serving import BEARER, PATIENCE_S, TOKEN
from tests.warm import python

pytestmark = [pytest.mark.slow, pytest.mark.all]

TRAIN = """
import sys, torch, hookcore
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
watcher = hookcore.watch(model, name=sys.argv[1], budget=None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[2])):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
watcher.close()
"""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Return a proxy and a run of 20 steps that was sent through it."""
    with proxied(tmp_path_factory.mktemp("proxy")) as started:
        _train(started, "first", 20)
        yield started


@pytest.fixture
def client(proxy: Proxied, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HOOKCORE_CA_FILE", str(proxy.certificate))
    with Client(proxy.url, TOKEN) as client:
        yield client


def _train(proxy: Proxied, name: str, steps: int) -> None:
    command = [python(), "-c", TRAIN, name, str(steps)]
    done = subprocess.run(command, env=proxy.environment, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr


def _ask(proxy: Proxied, method: str, path: str, **headers: str) -> tuple[HTTPResponse, str]:
    """Return an answer and its text, without following redirects."""
    with closing(HTTPSConnection("localhost", proxy.port, context=proxy.trust, timeout=PATIENCE_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()


def _log_in(proxy: Proxied, role: str = "owner") -> tuple[HTTPResponse, str]:
    """Return the answer to a login link, and the cookie that it sets."""
    _, told = _ask(proxy, "POST", f"{PREFIX}/api/v1/login-link?role={role}", **BEARER)
    link = json.loads(told)["url"]
    assert link.startswith(f"{proxy.url}/login?code=")
    answer, _ = _ask(proxy, "GET", link.removeprefix(f"https://{proxy.host}"))
    return answer, answer.headers["Set-Cookie"].partition(";")[0]


def test_a_remote_training_sends_and_a_remote_script_reads(proxy: Proxied, client: Client) -> None:
    run = client.runs()[0]
    assert (run.name, run.state, run.newest_step) == ("first", "ended", 19)
    assert client.series("0 output", "rms", run=run.id).mean.size == 20
    assert client.rename(run.id, notes="through the proxy").notes == "through the proxy"


def test_an_untrusted_certificate_is_refused(proxy: Proxied, tmp_path: Path) -> None:
    with Client(proxy.url, TOKEN) as stranger, pytest.raises(ServerError, match="certificate"):
        stranger.runs()


def test_the_proxy_lets_no_request_through_without_a_token(proxy: Proxied) -> None:
    with urlopen(f"{proxy.direct}/api/v1/runs", timeout=PATIENCE_S) as direct:
        assert direct.status == 200  # local readers need no token
    for method, path in (("GET", "/"), ("GET", "/api/v1/runs"), ("POST", "/api/v1/login-link")):
        answer, _ = _ask(proxy, method, PREFIX + path)
        assert answer.status == 401


def test_a_login_link_sets_a_cookie_for_the_prefix_that_is_sent_only_over_tls(proxy: Proxied) -> None:
    answer, cookie = _log_in(proxy)
    assert answer.status == 303
    assert urljoin(f"{proxy.url}/login", answer.headers["Location"]) == f"{proxy.url}/"
    marks = {mark.strip().lower() for mark in answer.headers["Set-Cookie"].split(";")[1:]}
    assert {"secure", "httponly", "samesite=strict", f"path={PREFIX}/"} <= marks
    page, _ = _ask(proxy, "GET", f"{PREFIX}/", Cookie=cookie)
    assert page.status == 200


def test_the_prefix_without_its_slash_redirects_to_the_pages(proxy: Proxied) -> None:
    answer, _ = _ask(proxy, "GET", PREFIX)
    assert answer.status == 301
    assert answer.headers["Location"] == f"{proxy.url}/"


def test_every_link_of_the_pages_stays_below_the_prefix_and_works(proxy: Proxied, client: Client) -> None:
    run = client.runs()[0].id
    waiting, seen = [f"{proxy.url}/", f"{proxy.url}/runs/{run}"], set[str]()
    while waiting:
        page = waiting.pop()
        seen.add(page)
        answer, text = _ask(
            proxy, "GET", page.removeprefix(f"https://{proxy.host}"), Accept="text/html,*/*;q=0.8", **BEARER
        )
        assert answer.status == 200, page
        if "text/html" not in answer.headers["Content-Type"] or "Content-Disposition" in answer.headers:
            continue
        assert f'<base href="{PREFIX}/">' in text
        for link in map(unescape, re.findall(r'(?:href|src|action)="([^"#]*)', text)):
            # A page is the same for any query; a download may be empty without one.
            target = urljoin(f"{proxy.url}/", link if link.startswith("api/") else link.partition("?")[0])
            assert target.startswith(f"{proxy.url}/"), f"{page} leads to {link}"
            if target not in seen and target not in waiting:
                waiting.append(target)
    assert {f"{proxy.url}/runs/{run}/flow", f"{proxy.url}/settings", f"{proxy.url}/compare"} <= seen
    assert any(path.endswith("app.css") for path in seen)


def test_the_url_copied_from_a_page_is_the_proxys(proxy: Proxied, client: Client) -> None:
    run = client.runs()[0].id
    _, text = _ask(proxy, "GET", f"{PREFIX}/runs/{run}/problems?format=markdown", **BEARER)
    assert f"{proxy.url}/runs/{run}/problems" in text


def test_events_of_a_stream_arrive_while_it_is_open(proxy: Proxied) -> None:
    with closing(HTTPSConnection("localhost", proxy.port, context=proxy.trust, timeout=PATIENCE_S)) as connection:
        connection.request("GET", f"{PREFIX}/api/v1/live?kind=output", headers=BEARER)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        first = _next_run(answer)  # a proxy with buffering would hold it back until more has arrived
        _train(proxy, "later", 5)
        while _next_run(answer) == first:
            pass


def _next_run(stream: HTTPResponse) -> str:
    """Return the run of the next values that a stream sends."""
    while line := stream.readline().decode():
        news = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if "latest" in news:
            run: str = news["latest"]["run"]
            return run
    raise AssertionError("the stream ended")


def test_the_pages_socket_opens_only_for_the_proxys_own_pages(proxy: Proxied, client: Client) -> None:
    address = f"wss://{proxy.host}{PREFIX}/api/v1/socket"
    _, cookie = _log_in(proxy, "reader")
    ours = {"Cookie": cookie}
    with connect(address, ssl=proxy.trust, origin=f"https://{proxy.host}", additional_headers=ours, proxy=None) as page:  # type: ignore[arg-type]
        page.send(json.dumps({"op": "subscribe", "id": 1, "view": "heatmap", "kind": "output"}))
        kinds = {page.recv(PATIENCE_S)[0] for _ in range(3)}
        assert 1 in kinds  # a snapshot
    for origin in ("https://evil.example", f"http://{proxy.host}"):
        with pytest.raises(InvalidStatus):
            connect(address, ssl=proxy.trust, origin=origin, additional_headers=ours, proxy=None)  # type: ignore[arg-type]


def test_a_change_is_accepted_only_from_the_proxys_own_pages(proxy: Proxied) -> None:
    _, cookie = _log_in(proxy)
    answers = {
        origin: _ask(proxy, "POST", f"{PREFIX}/api/v1/login-link", Cookie=cookie, Origin=origin)[0].status
        for origin in (f"https://{proxy.host}", f"http://{proxy.host}", "https://localhost", "https://evil.example")
    }
    assert answers == {
        f"https://{proxy.host}": 200,
        f"http://{proxy.host}": 403,
        "https://localhost": 403,
        "https://evil.example": 403,
    }


def test_the_host_name_of_the_docs_is_accepted_and_another_one_is_not(proxy: Proxied) -> None:
    assert _ask(proxy, "GET", f"{PREFIX}/healthz", Host=NAME)[0].status == 200
    assert _ask(proxy, "GET", f"{PREFIX}/healthz", Host="evil.example")[0].status == 400


def test_the_command_makes_a_link_through_the_proxy(
    proxy: Proxied, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["link", proxy.url]) == 0
    assert capsys.readouterr().out.startswith(f"{proxy.url}/login?code=")


def test_the_address_without_the_proxy_works_with_the_prefix_and_without(proxy: Proxied) -> None:
    for root in (proxy.direct, proxy.direct + PREFIX):
        with urlopen(f"{root}/", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        (style,) = re.findall(r'<link rel="stylesheet" href="([^"]*app.css)"', text)
        target = urljoin(f"{proxy.direct}{PREFIX}/", style)
        assert urlsplit(target).path.startswith(PREFIX)
        with urlopen(target, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
