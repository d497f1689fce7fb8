"""The files for the hosting service: they fit the project, and workflows call the targets that people call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import PROJECT

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_people_call_and_may_only_read(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    called = [command for command in commands if command.startswith(("make ", ".ci/"))]
    assert len(called) == 1
    assert called == [".ci/run"] or set(re.findall(r"^make ([a-z-]+)", called[0])) <= TARGETS
    assert not [command for command in commands if "${{" in command]  # what others name is no part of a command


def test_there_are_workflows_for_tests_wheels_and_docs() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "tests", "wheels"]


def test_the_citation_names_the_project_and_no_version_of_its_own() -> None:
    citation = _read(ROOT / "CITATION.cff")
    assert (citation["title"], citation["license"]) == (PROJECT["name"], PROJECT["license"])
    assert citation["authors"] == [{"name": "The hookcore developers"}]
    assert "version" not in citation


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_has_a_name_and_fields_with_labels(path: Path) -> None:
    form = _read(path)
    assert form["name"]
    assert form["description"]
    fields = [field["id"] for field in form["body"] if field["attributes"]["label"]]
    assert len(set(fields)) == len(form["body"])
