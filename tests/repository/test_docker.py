"""The Dockerfile, as far as it can be checked without building images. `make image` builds and runs one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hookcore_app.settings import ServerSettings
from tests.project import PROJECT
from tests.serving import TOKEN, make_world, served

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_all_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}" in ignored, source


def test_the_server_gets_all_dependencies_except_those_of_trainers() -> None:
    command = [sys.executable, ROOT / "docker" / "requirements.py", "torch"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    needed = PROJECT["dependencies"]
    assert [line for line in told if line] == [each for each in needed if not each.startswith("torch")]
    assert len(needed) - len([line for line in told if line]) == 1


def test_a_server_imports_neither_torch_nor_modules_for_notifications() -> None:
    code = (
        "import sys, hookcore_app.cli, hookcore_app.serving.server\n"
        "import hookcore_app.main, hookcore_app.runs, hookcore_app.settings as s\n"
        "hookcore_app.main.create_app(hookcore_app.runs.Runs(s.ServerSettings()), s.ServerSettings())\n"
        "print({'torch', 'apprise'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_health_check_asks_the_server_at_its_address() -> None:
    with served() as server:
        environment = {**os.environ, "HOOKCORE_PORT": str(server.port)}
        command = [sys.executable, str(ROOT / "docker" / "healthy.py")]
        assert subprocess.run(command, env=environment, check=False).returncode == 0
    gone = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert gone.returncode != 0


def test_the_dashboard_of_compose_has_the_name_that_its_training_uses() -> None:
    compose = (ROOT / "compose.yaml").read_text()
    (host,) = re.findall(r"HOOKCORE_SERVER: http://(\S+)", compose)
    (allowed,) = re.findall(r"HOOKCORE_ALLOWED_HOSTS: (\S+)", compose)
    settings = ServerSettings.of({}, {"HOOKCORE_HOST": "0.0.0.0", "HOOKCORE_ALLOWED_HOSTS": allowed})
    world = make_world(token=TOKEN, host=settings.host, allowed_hosts=settings.allowed_hosts)
    assert world.client.get("/healthz", headers={"Host": host}).status_code == 200


def test_compose_uses_the_stages_and_requires_a_token() -> None:
    compose = (ROOT / "compose.yaml").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert set(re.findall(r"target: (\w+)", compose)) == {"dashboard", "training"} <= stages
    assert compose.count("HOOKCORE_TOKEN: ${HOOKCORE_TOKEN:?") == 2
    assert "127.0.0.1:8642:8642" in compose
