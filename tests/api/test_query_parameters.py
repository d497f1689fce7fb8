"""The API rejects unknown query parameters and second values instead of ignoring them. Pages ignore them."""

from __future__ import annotations

import html
import re
from typing import Any, Final
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient, WebSocketDenialResponse

from hookcore_app.collector.service import create_collector
from hookcore_app.live import publisher_of
from hookcore_app.serving.guard.security import MAX_NAME, MAX_NAMES
from hookcore_app.settings import CollectorSettings, ServerSettings
from tests.api_world import World, strict
from tests.lanes import examples
from tests.serving import routes_of

WORLD: Final = World()
publisher_of(WORLD.app).stop()  # so that a stream also ends if it isn't rejected
SCHEMA: Final = WORLD.app.openapi()["paths"]
ROUTES: Final = sorted({(method, route.path) for method, route in routes_of(WORLD.app.routes)})
# The description is the same for every query.
API: Final = [each for each in ROUTES if each[1].startswith("/api/") and each[1] != WORLD.app.openapi_url]
DESCRIBED: Final = [each for each in API if each[0].lower() in SCHEMA.get(each[1], {})]
PAGES: Final = [path for _, path in ROUTES if not path.startswith(("/api/", "/static/"))]


def ask(method: str, path: str, query: str, app: FastAPI = WORLD.app, **more: Any) -> tuple[int, str]:
    """Return the status of an answer, and the message of an error."""
    client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
    address = re.sub(r"\{\w+\}", "one", path) + f"?{query}"
    if method == "SOCKET":
        try:
            with client.websocket_connect(f"ws://127.0.0.1{address}"):
                return 101, ""
        except WebSocketDenialResponse as refusal:
            return refusal.status_code, strict(refusal.content)["error"]
    answer = client.request(method, address, **more)
    is_error = answer.status_code >= 400 and answer.headers["content-type"] == "application/json"
    return answer.status_code, strict(answer.content)["error"] if is_error else ""


def parameters_of(method: str, path: str) -> dict[str, bool]:
    """Return the query parameters in the description of the API, and whether each of them is a list."""
    found = [each for each in SCHEMA[path][method.lower()].get("parameters", ()) if each["in"] == "query"]
    return {each["name"]: _is_list(each["schema"]) for each in found}


def _is_list(schema: Any) -> bool:
    return any(each.get("type") == "array" for each in (schema, *schema.get("anyOf", ())))


def _has_json(method: str, path: str) -> bool:
    return "application/json" in SCHEMA[path][method.lower()].get("requestBody", {}).get("content", {})


def test_there_are_routes_of_every_method_and_a_socket() -> None:
    assert len(DESCRIBED) > 60
    assert {method for method, _ in API} == {"DELETE", "GET", "PATCH", "POST", "PUT", "SOCKET"}
    assert len(PAGES) > 20
    assert len([each for each in DESCRIBED if _has_json(*each)]) > 8


@pytest.mark.parametrize(("method", "path"), API)
def test_every_route_of_the_api_refuses_a_parameter_that_it_does_not_know(method: str, path: str) -> None:
    runs = [run.id for run in WORLD.runs.all()]
    status, error = ask(method, path, "stranger=1")
    assert status == 422
    assert error.startswith("unknown parameter 'stranger'. Allowed: ")
    assert error.endswith((". Use one of these, or leave it out", "Allowed: none. Leave it out"))
    assert [run.id for run in WORLD.runs.all()] == runs


@pytest.mark.parametrize(("method", "path"), DESCRIBED)
def test_every_route_knows_exactly_the_parameters_that_its_description_has(method: str, path: str) -> None:
    known = parameters_of(method, path)
    _, error = ask(method, path, "stranger=1")
    allowed = error.partition("Allowed: ")[2].partition(". ")[0].split(", ")
    assert sorted(allowed) == sorted(known or ["none"])


@pytest.mark.parametrize(("method", "path"), DESCRIBED)
def test_a_parameter_with_one_value_is_refused_twice_and_a_list_is_not(method: str, path: str) -> None:
    for name, is_list in parameters_of(method, path).items():
        status, error = ask(method, path, f"{name}=x&{name}=x")
        if is_list:
            assert "only one value" not in error
        else:
            assert status == 422
            assert error == f"{name}= is given 2 times: only one value is allowed. Give it once"


def test_the_nearest_parameters_are_suggested() -> None:
    _, error = ask("GET", "/api/v1/series", "tap=0&stta=rms&frmo=3&zzz=1")
    assert error.startswith("unknown parameters 'stta', 'frmo', 'zzz'; did you mean 'stat', 'from'? Allowed: run, ")
    _, error = ask("GET", "/api/v1/compare", "run=one,two")
    assert "did you mean 'runs'?" in error
    _, error = ask("GET", "/api/v1/scalars", "first=3")  # its spelling differs, but the message lists it
    assert "did you mean" not in error
    assert ", from, " in error


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [("POST", "annotations", "run"), ("PATCH", "settings", "every"), ("PATCH", "runs/{run}", "tags")],
)
def test_the_error_for_a_body_field_in_the_query_says_to_send_it_in_the_body(method: str, path: str, name: str) -> None:
    status, error = ask(method, f"/api/v1/{path}", f"{name}=one", json={"step": 3, "text": "note"})
    assert status == 422
    assert error == f"{name}= is not a parameter of this address: send it in the JSON body"


def test_a_token_in_the_address_is_not_repeated_in_the_error() -> None:
    status, error = ask("GET", "/api/v1/runs", "token=s3cret")
    assert status == 422
    assert "'token'" in error
    assert "s3cret" not in error


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=50), min_size=1, max_size=2 * MAX_NAMES, unique=True))
def test_any_other_name_is_refused_in_a_short_sentence(names: list[str]) -> None:
    strangers = [name for name in names if name not in parameters_of("GET", "/api/v1/series")]
    query = "&".join(f"{quote(name, safe='')}=1" for name in strangers)
    status, error = ask("GET", "/api/v1/series", f"tap=0&stat=rms&{query}")
    assert status == (422 if strangers else 200)
    assert len(error) < 1000 + MAX_NAMES * MAX_NAME * len(ascii("\U0010ffff"))


def test_a_long_name_is_cut() -> None:
    status, error = ask("GET", "/api/v1/series", f"{'x' * 5000}=1")
    assert status == 422
    assert len(error) < 500


@pytest.mark.parametrize("path", PAGES)
def test_pages_open_with_any_parameters(path: str) -> None:
    usual, _ = ask("GET", path, "")
    assert ask("GET", path, "utm_source=chat&stranger=1&stranger=2")[0] == usual


@pytest.mark.parametrize("path", PAGES)
def test_links_of_pages_into_the_api_have_only_parameters_that_it_knows(path: str) -> None:
    page = WORLD.client.get(re.sub(r"\{\w+\}", "one", path)).text
    for link in re.findall(r'(?:href|src)="(api/v1/[^"]*)"', page):
        answer = WORLD.client.get(f"/{html.unescape(link)}")
        assert answer.status_code == 200, (link, answer.text)


@pytest.mark.parametrize(("method", "path"), [each for each in DESCRIBED if _has_json(*each)])
def test_every_body_refuses_a_field_that_it_does_not_know(method: str, path: str) -> None:
    status, error = ask(method, path, "", json={"stranger": 1})
    assert status == 422
    assert "stranger" in error


def test_a_collector_refuses_them_too_but_redirects_pages_with_their_query(tmp_path: Any) -> None:
    given = CollectorSettings(to="http://127.0.0.1:1", spool=str(tmp_path))
    app = create_collector(ServerSettings(), given)
    try:
        for path in ("/api/v1/ingest", "/api/v1/login-link"):
            assert ask("POST", path, "stranger=1", app)[0] == 422
        assert ask("GET", "/runs/one", "stranger=1", app)[0] == 307
    finally:
        app.state.lanes.close()
