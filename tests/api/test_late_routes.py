"""REST is imported when it is first needed, and no reader can notice that, except by the time of the answer."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookcore_app.api import rest
from tests.serving import World, make_world, routes_of

NEW = """
import sys
from starlette.testclient import TestClient
import hookcore_app.serving.server
from hookcore_app.main import create_app
from hookcore_app.runs import Runs
from hookcore_app.settings import ServerSettings
client = TestClient(create_app(Runs(ServerSettings()), ServerSettings()), base_url="http://127.0.0.1:8642")
assert client.get("/").status_code == client.get("/healthz").status_code == 200
late = "hookcore_app.api.runs", "hookcore_app.clickhouse.client", "pyarrow", "prometheus_client", "torch"
print(*(name for name in late if name in sys.modules))
assert client.get("/api/v1/runs").status_code == 200
assert "hookcore_app.api.runs" in sys.modules
"""


@pytest.fixture
def world() -> World:
    return make_world()


def test_the_first_page_of_a_new_server_imports_nothing_that_only_rest_clickhouse_or_saved_runs_need() -> None:
    done = subprocess.run([sys.executable, "-c", NEW], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/rules", "/api/v1/openapi.json"])
def test_a_first_request_to_rest_is_answered_as_a_later_one(path: str, world: World) -> None:
    first, later = (world.client.get(path) for _ in range(2))
    assert (first.status_code, first.content) == (later.status_code, later.content)
    assert first.json() != {"error": "Not Found"}


def test_first_requests_at_the_same_time_all_find_their_route(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(world.client.get, ["/api/v1/runs", "/api/v1/views", "/api/v1/board"] * 5))
    assert {answer.status_code for answer in answers} == {200}


def test_an_unknown_address_and_a_wrong_method_are_refused_as_ever(world: World) -> None:
    for _ in range(2):
        assert world.client.get("/api/v1/nothing").status_code == 404
        assert world.client.get("/nothing").status_code == 404
        assert world.client.delete("/api/v1/runs").status_code == 405
        assert world.client.get("/api/v1/ingest").status_code == 405


def test_the_description_of_the_api_is_complete_from_the_start(world: World) -> None:
    paths = world.client.get("/api/v1/openapi.json").json()["paths"]
    assert {"/api/v1/runs", "/api/v1/series", "/api/v1/ingest", "/healthz"} <= set(paths)


def test_no_path_of_rest_is_one_of_the_other_routes(world: World) -> None:
    late = {route.path for _, route in routes_of(rest.router.routes)}
    assert not late & {route.path for _, route in routes_of(world.app.router.routes)}
    assert late <= {route.path for _, route in routes_of(world.app.routes)}
