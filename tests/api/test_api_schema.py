"""The application follows its own schema: no request crashes it or gets an answer outside of the schema."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api_world import World, fill, open_run, strict
from tests.lanes import examples, runs_all

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
# Endless streams and routes for trainers are tested elsewhere.
ELSEWHERE = r"^/api/v1/(live|socket|ingest)$"


WORLD = World()
RUNS = [fill(open_run(WORLD.runs, name, started_s=2.0)) for name in ("run-1", "run-2")]  # as in the examples
schema = schemathesis.openapi.from_dict(WORLD.app.openapi())
schema.app = WORLD.app
schema.config.phases.coverage.enabled = runs_all()  # 6,000 requests, each at one boundary


@pytest.mark.slow
@schema.exclude(path_regex=ELSEWHERE).parametrize()
@settings(
    max_examples=examples(30),
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_finds_a_crash_or_an_answer_outside_the_schema(case: Any) -> None:
    for run in RUNS:  # one request removes runs
        WORLD.runs.add(run)
    answer = case.call(base_url="http://127.0.0.1", headers={"Host": "127.0.0.1"})
    case.validate_response(answer, checks=list(CHECKS))
    if answer.headers.get("content-type", [""])[0].startswith("application/json"):
        strict(answer.content)
