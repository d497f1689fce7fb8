"""compose.cluster.yaml and the manifests of the same cluster: what they name exists, and their processes cooperate.

These tests start no containers.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import httpx2 as httpx
import pytest
import yaml

from hookcore.records.wire import encode
from hookcore_app.clickhouse.client import PASSWORD, ClusterAddress
from hookcore_app.collector.service import router
from hookcore_app.settings import TABLES
from tests.clickhouse.nodes import PASSWORD as SECRET
from tests.clickhouse.nodes import running
from tests.ports import free_ports
from tests.proxying import find_nginx
from tests.receiver import a_run
from tests.serving import BATCH, BEARER, TOKEN, make_batch
from tests.waiting import wait_for
from tests.warm import python

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = yaml.safe_load((ROOT / "compose.cluster.yaml").read_text())
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
OURS: Final = {name: each for name, each in SERVICES.items() if each["image"] == "hookcore"}
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text()
NGINX: Final = ROOT / "docker" / "cluster" / "nginx.conf"
MANIFESTS: Final = ROOT / "docker" / "kubernetes-cluster"
BASE: Final = ROOT / "docker" / "kubernetes"
KNOWN: Final = {setting.variable for table in TABLES.values() for setting in table} | {PASSWORD}


# -- compose -----------------------------------------------------------------------------------------------------------


def test_services_depend_on_services_that_have_a_health_check() -> None:
    for name, each in SERVICES.items():
        for other, how in each.get("depends_on", {}).items():
            assert other in SERVICES, name
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in SERVICES[other], other


def test_every_mounted_file_and_volume_exists_and_every_volume_is_used() -> None:
    named = set()
    for each in SERVICES.values():
        for source in (volume.partition(":")[0] for volume in each.get("volumes", ())):
            if source.startswith("."):
                assert (ROOT / source).is_file(), source
            else:
                named.add(source)
    assert named == set(COMPOSE["volumes"])


def test_images_are_pinned_and_only_loopback_ports_are_open() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    for name, each in SERVICES.items():
        built = each.get("build")
        assert built["target"] in stages if built else re.search(r":\d+\.\d+\.\d+", each["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", ())), name


def test_two_servers_and_two_collectors_have_variables_that_are_settings() -> None:
    assert [each["command"] for each in OURS.values()] == [["serve"], ["serve"], ["collect"], ["collect"]]
    for name, each in OURS.items():
        assert set(each["environment"]) <= KNOWN, name


def test_the_addresses_of_clickhouse_are_services_with_its_user_and_password() -> None:
    for name, each in OURS.items():
        given = each["environment"]
        address = ClusterAddress.of(given.get("HOOKCORE_STORE") or given["HOOKCORE_TO"], {})
        for node in address.shards[0]:
            service = SERVICES[node.host]
            assert service["environment"]["REPLICA"] == node.host
            assert service["environment"]["CLICKHOUSE_USER"] == address.user
            source = _variable(service["environment"]["CLICKHOUSE_PASSWORD"])
            assert source == _variable(given[PASSWORD]), name
    replicas = {node.host for node in address.shards[0]}
    assert replicas == {name for name in SERVICES if name.startswith("clickhouse-")}


def _variable(value: str) -> str:
    """Return the shell variable that compose requires and inserts."""
    found = re.fullmatch(r"\$\{(\w+):\?.+\}", value)
    assert found is not None, value
    return found[1]


def test_health_checks_ask_routes_that_exist() -> None:
    routes = {route.path for route in router.routes} | {"/healthz"}  # type: ignore[attr-defined]
    for name, each in OURS.items():
        *_, script, path = each["healthcheck"]["test"]
        assert f"COPY docker/{Path(script).name} {script}\n" in DOCKERFILE, name
        assert path in routes, name


def test_each_collector_has_its_own_spool_and_a_port_for_trainers() -> None:
    collectors = [each for each in OURS.values() if each["command"] == ["collect"]]
    assert (
        len({tuple(each["volumes"]) for each in collectors}) == len({tuple(each["ports"]) for each in collectors}) == 2
    )
    for each in collectors:
        assert each["environment"]["HOOKCORE_SPOOL"].startswith(each["volumes"][0].partition(":")[2])
        assert each["ports"][0].endswith(f":{each['environment']['HOOKCORE_PORT']}")


@pytest.mark.parametrize("folder", [ROOT / "docker" / "cluster", MANIFESTS], ids=["compose", "kubernetes"])
def test_clickhouse_uses_the_existing_keepers(folder: Path) -> None:
    clickhouse, keeper = (ElementTree.parse(folder / f"{name}.xml").getroot() for name in ("clickhouse", "keeper"))
    asked = {each.findtext("host"): each.findtext("port") for each in clickhouse.iter("node")}
    members = {each.findtext("hostname") for each in keeper.iter("server")}
    assert asked == dict.fromkeys(members, keeper.findtext("keeper_server/tcp_port"))
    names = {f"hookcore-keeper-{number}.hookcore-keeper" for number in range(3)}
    assert members == ({"keeper"} if folder.name == "cluster" else names)
    replica = clickhouse.find("macros/replica")
    assert replica is not None
    assert replica.get("from_env") == "REPLICA"


def _nginx_conf(ports: dict[str, int]) -> str:
    """Return the proxy's configuration, with local ports in place of names that exist only in compose."""
    text = NGINX.read_text()
    for name, port in ports.items():
        text = text.replace(f"server {name}:8642", f"server 127.0.0.1:{port}")
    return text


def test_the_proxy_forwards_to_all_servers_and_its_configuration_is_valid(tmp_path: Path) -> None:
    servers = [name for name, each in OURS.items() if each["command"] == ["serve"]]
    assert re.findall(r"server ([a-z]\S+):8642", NGINX.read_text()) == servers
    assert f"listen {SERVICES['proxy']['ports'][0].rpartition(':')[2]};" in NGINX.read_text()
    path = tmp_path / "nginx.conf"
    path.write_text(_nginx_conf(dict.fromkeys(servers, 8642)).replace("/tmp/", f"{tmp_path}/"))
    done = subprocess.run([find_nginx(), "-t", "-e", "stderr", "-c", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- the processes -----------------------------------------------------------------------------------------------------


@contextmanager
def _started(service: dict[str, Any], folder: Path, to: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of a service with its variables and those of the image, and with this machine's ClickHouse."""
    given = {name: value for name, value in service["environment"].items() if not value.startswith("${")}
    address = {name: to for name in ("HOOKCORE_STORE", "HOOKCORE_TO") if name in given}
    spool = {"HOOKCORE_SPOOL": str(folder / "spool")} if "HOOKCORE_SPOOL" in given else {}
    secrets = {"HOOKCORE_TOKEN": TOKEN, PASSWORD: SECRET}
    image = dict(re.findall(r"(HOOKCORE_\w+)=(\S+)", DOCKERFILE.rpartition("FROM")[2]))
    placed = {"HOOKCORE_HOST": "127.0.0.1", "HOOKCORE_PORT": str(port), "HOOKCORE_HOME": str(folder)}
    others = {name: value for name, value in os.environ.items() if not name.startswith("HOOKCORE_")}
    with subprocess.Popen(
        [python(), "-m", "hookcore_app.cli", *service["command"]],
        env={**others, **image, **given, **address, **spool, **secrets, **placed},
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _status(url: str) -> int:
    try:
        return httpx.get(url, headers=BEARER).status_code
    except httpx.TransportError:
        return 0


def _wait_until_ready(url: str, name: str) -> None:
    wait_for(lambda: _status(f"{url}/readyz") == 200, name)


@pytest.mark.all
@pytest.mark.slow
def test_the_servers_behind_the_proxy_show_what_a_collector_inserts_and_one_of_them_may_die(tmp_path: Path) -> None:
    first, second, collector, proxy = free_ports(4)
    path = tmp_path / "nginx.conf"
    text = _nginx_conf({"server-1": first, "server-2": second}).replace("/tmp/", f"{tmp_path}/")
    path.write_text(text.replace("listen 8642;", f"listen 127.0.0.1:{proxy};"))
    with running() as nodes, ExitStack() as stack:
        to = nodes.url.replace(f":{SECRET.replace(' ', '%20')}@", "@")
        start = [("server-1", first), ("server-2", second), ("collector-1", collector)]
        processes = {}
        for name, port in start:
            (tmp_path / name).mkdir()
            processes[name] = stack.enter_context(_started(SERVICES[name], tmp_path / name, to, port))
        command = [find_nginx(), "-e", "stderr", "-g", "daemon off; master_process off;", "-c", str(path)]
        nginx = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(nginx.terminate)
        for name, port in start:
            _wait_until_ready(f"http://127.0.0.1:{port}", name)
        url = f"http://127.0.0.1:{proxy}"
        _wait_until_ready(url, "the proxy")
        batch = make_batch(a_run("run"), range(3), taps=2)
        sent = httpx.post(f"http://127.0.0.1:{collector}/api/v1/ingest", content=encode(batch), headers=BATCH | BEARER)
        assert sent.status_code == 200, sent.text
        series = "api/v1/series?run=run&tap=0&stat=mean"
        for each in (f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}", url):
            wait_for(partial(lambda at: _status(f"{at}/{series}") == 200, each), f"the run, at {each}")
        processes["server-1"].kill()
        processes["server-1"].wait()
        assert _status(f"{url}/{series}") == 200
        processes["server-2"].kill()
        processes["server-2"].wait()
        assert _status(f"{url}/readyz") in (502, 504)


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def _load(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def _patched(given: Any, patch: Any) -> Any:
    """Return a manifest after a strategic merge patch, which merges lists of named items by name."""
    if isinstance(given, dict) and isinstance(patch, dict):
        merged = {name: _patched(given.get(name), value) for name, value in patch.items() if value is not None}
        return {**{name: value for name, value in given.items() if name not in patch}, **merged}
    if isinstance(given, list) and isinstance(patch, list) and all("name" in each for each in patch):
        changes = {each["name"]: each for each in patch}
        kept = [_patched(each, changes.pop(each["name"], {})) for each in given]
        return [each for each in [*kept, *changes.values()] if each.get("$patch") != "delete"]
    return patch


def _manifests() -> list[dict[str, Any]]:
    """Return what kustomize would make of the folder, as far as these files need it."""
    (kustomization,) = _load(MANIFESTS / "kustomization.yaml")
    (base,) = _load(BASE / "kustomization.yaml")
    own = [name for name in kustomization["resources"] if name != "../kubernetes"]
    files = [*(BASE / name for name in base["resources"]), *(MANIFESTS / name for name in own)]
    found = {(each["kind"], each["metadata"]["name"]): each for path in files for each in _load(path)}
    for name in (each["path"] for each in kustomization["patches"]):
        (patch,) = _load(MANIFESTS / name)
        key = patch["kind"], patch["metadata"]["name"]
        found[key] = _patched(found[key], patch)
    return list(found.values())


PODS: Final = {each["metadata"]["name"]: each for each in _manifests() if "template" in each["spec"]}


def _container(name: str) -> dict[str, Any]:
    (found,) = PODS[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def _variables(name: str) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in _container(name)["env"]}


def test_kustomize_uses_every_file() -> None:
    (kustomization,) = _load(MANIFESTS / "kustomization.yaml")
    patches = [each["path"] for each in kustomization["patches"]]
    configs = [name for each in kustomization["configMapGenerator"] for name in each["files"]]
    used = [name for name in kustomization["resources"] if name != "../kubernetes"] + patches + configs
    assert {path.name for path in MANIFESTS.iterdir()} == {"kustomization.yaml", *used}
    maps = {each["name"]: each["files"] for each in kustomization["configMapGenerator"]}
    for name in ("hookcore-clickhouse", "hookcore-keeper"):
        spec = PODS[name]["spec"]["template"]["spec"]
        (volume,) = [each for each in spec["volumes"] if "configMap" in each]
        (mount,) = [each for each in _container(name)["volumeMounts"] if each["name"] == volume["name"]]
        assert maps[volume["configMap"]["name"]] == [mount["subPath"]]


def test_servers_and_collectors_have_variables_that_are_settings_and_the_address_of_all_replicas() -> None:
    replicas = PODS["hookcore-clickhouse"]["spec"]["replicas"]
    hosts = [f"hookcore-clickhouse-{number}.hookcore-clickhouse" for number in range(replicas)]
    for name, variable in (("hookcore", "HOOKCORE_STORE"), ("hookcore-collector", "HOOKCORE_TO")):
        given = _variables(name)
        assert set(given) <= KNOWN, name
        address = ClusterAddress.of(given[variable], {})
        assert [node.host for node in address.shards[0]] == hosts
        assert address.user == _variables("hookcore-clickhouse")["CLICKHOUSE_USER"]
        assert given[PASSWORD] == _variables("hookcore-clickhouse")["CLICKHOUSE_PASSWORD"]
    assert "HOOKCORE_TO_TOKEN" not in _variables("hookcore-collector")


@pytest.mark.parametrize("name", list(PODS))
def test_a_pod_is_selected_confined_and_probed_and_its_volumes_exist(name: str) -> None:
    pod, container = PODS[name]["spec"]["template"], _container(name)
    assert PODS[name]["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    claims = [each["metadata"]["name"] for each in PODS[name]["spec"].get("volumeClaimTemplates", ())]
    volumes = [each["name"] for each in pod["spec"]["volumes"]] + claims
    assert len(volumes) == len(set(volumes))
    assert {each["name"] for each in container["volumeMounts"]} <= set(volumes)
    ports = {each["name"] for each in container["ports"]}
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports
    if name in ("hookcore", "hookcore-collector"):
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_stateful_sets_have_their_service_and_the_servers_need_no_disk() -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in _manifests() if each["kind"] == "Service"}
    for name, each in PODS.items():
        if each["kind"] == "StatefulSet":
            selector = services[each["spec"]["serviceName"]]["selector"]
            assert selector.items() <= each["spec"]["template"]["metadata"]["labels"].items(), name
    assert services["hookcore"]["sessionAffinity"] == "ClientIP"
    assert PODS["hookcore"]["spec"]["replicas"] == 2
    assert "volumeClaimTemplates" not in PODS["hookcore"]["spec"]


def test_clickhouse_has_the_release_of_compose() -> None:
    images = {_container(name)["image"] for name in PODS} - {"hookcore"}
    assert images == {each["image"] for each in SERVICES.values() if "clickhouse/" in each["image"]}
    assert len({image.rpartition(":")[2] for image in images}) == 1
