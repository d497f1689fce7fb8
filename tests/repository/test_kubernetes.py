"""The manifests for Kubernetes: what they name exists, and their commands start with their variables."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from hookcore_app.settings import TABLES
from tests.serving import TOKEN
from tests.waiting import wait_for
from tests.warm import python

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
PARTS = ("server.yaml", "collector.yaml")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _pod(name: str) -> dict[str, Any]:
    (found,) = [each["spec"]["template"] for each in _documents(name) if "template" in each["spec"]]
    return dict(found)


def _container(name: str) -> dict[str, Any]:
    (found,) = _pod(name)["spec"]["containers"]
    return dict(found)


def _variables(name: str) -> dict[str, str]:
    """Return the variables as in a cluster. The value of a secret is made from its key."""
    return {each["name"]: each.get("value") or _secret(each) for each in _container(name)["env"]}


def _secret(variable: dict[str, Any]) -> str:
    key = str(variable["valueFrom"]["secretKeyRef"]["key"])
    return TOKEN if key != "read-token" else f"{key}-{TOKEN}"


def test_kustomize_uses_every_manifest() -> None:
    (kustomization,) = _documents("kustomization.yaml")
    assert set(kustomization["resources"]) == set(PARTS)
    assert {path.name for path in FOLDER.iterdir()} == {*PARTS, "kustomization.yaml"}


@pytest.mark.parametrize("name", PARTS)
def test_every_variable_is_a_setting(name: str) -> None:
    known = {each.variable for table in TABLES.values() for each in table}
    assert set(_variables(name)) <= known


@pytest.mark.parametrize("name", PARTS)
def test_the_labels_of_a_pod_are_selected(name: str) -> None:
    labels = _pod(name)["metadata"]["labels"]
    for document in _documents(name):
        chosen = document["spec"]["selector"]
        assert (chosen.get("matchLabels") or chosen).items() <= labels.items()


@pytest.mark.parametrize("name", PARTS)
def test_every_mounted_volume_exists_and_the_container_is_confined(name: str) -> None:
    spec = _pod(name)["spec"]
    own = {
        claim["metadata"]["name"] for each in _documents(name) for claim in each["spec"].get("volumeClaimTemplates", ())
    }
    volumes = {each["name"] for each in spec["volumes"]} | own
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    user = re.search(r"^USER (\d+):(\d+)\nVOLUME", DOCKERFILE, re.MULTILINE)
    assert user is not None
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == tuple(
        map(int, user.groups())
    )


def test_the_collector_sends_to_the_service() -> None:
    (service,) = [each for each in _documents("server.yaml") if each["kind"] == "Service"]
    (port,) = service["spec"]["ports"]
    host = service["metadata"]["name"]
    assert _variables("collector.yaml")["HOOKCORE_TO"] == f"http://{host}:{port['port']}"
    assert _variables("server.yaml")["HOOKCORE_ALLOWED_HOSTS"] == host


def test_the_trainers_of_the_docs_use_the_port_of_the_collector_and_its_token() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    variables = {each["name"]: each for each in yaml.safe_load(block)["env"]}
    (port,) = _container("collector.yaml")["ports"]
    assert variables["HOOKCORE_URL"]["value"] == f"http://$(HOST_IP):{port['hostPort']}"
    own = {each["name"]: each for each in _container("collector.yaml")["env"]}["HOOKCORE_TOKEN"]
    assert variables["HOOKCORE_TOKEN"]["valueFrom"] == own["valueFrom"]
    for key in re.findall(r"--from-literal=([a-z-]+)=", text):
        assert f"key: {key}\n" in "".join((FOLDER / name).read_text() for name in PARTS)


@pytest.fixture(params=PARTS)
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Run a container's command with its variables and those of the image, on a free port and in a temporary folder."""
    container = _container(request.param)
    image = dict(re.findall(r"(HOOKCORE_\w+)=(\S+)", DOCKERFILE.rpartition("FROM")[2]))
    placed = {"HOOKCORE_HOST": "127.0.0.1", "HOOKCORE_PORT": "0", "HOOKCORE_KEEP": str(tmp_path / "data")}
    if "HOOKCORE_SPOOL" in _variables(request.param):
        placed["HOOKCORE_SPOOL"] = str(tmp_path / "spool")
    others = {name: value for name, value in os.environ.items() if not name.startswith("HOOKCORE_")}
    command = [python(), "-u", "-m", "hookcore_app.cli", *container["args"]]
    with subprocess.Popen(
        command,
        env={**others, **image, **_variables(request.param), **placed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as started:
        assert started.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = started.stdout.readline()
            assert line, said
            said += line
        try:
            yield container, found[0]
        finally:
            started.terminate()
            started.stdout.read()
            assert started.wait() == 0


def test_a_container_starts_with_its_variables_and_answers_its_probes(process: tuple[dict[str, Any], str]) -> None:
    container, url = process
    wait_for(lambda: _status(url + container["readinessProbe"]["httpGet"]["path"]) == 200)
    assert _status(url + container["livenessProbe"]["httpGet"]["path"]) == 200
    assert httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0
