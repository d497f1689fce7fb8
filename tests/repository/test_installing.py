"""A training that sends to another machine needs only the packages that docs/installing.md lists for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hookcore.errors import OF_DASHBOARDS
from tests.project import PROJECT
from tests.serving import TOKEN, served

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "installing.md").read_text()
pytestmark = pytest.mark.slow

TRAINING = """
import sys
import torch
import hookcore
from hookcore.delivery.http import connection

connection.is_loopback = lambda host: False  # as if the server were on another machine
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with hookcore.watch(model, name="lean", **eval(sys.argv[1])) as watcher:
        for _ in range(20):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    assert watcher.error_count == 0, watcher.errors
    print(watcher.delivery)
"""


def _packages_of_trainings() -> list[str]:
    (line,) = re.findall(r"^pip install (google-re2 .+)$", PAGE, re.MULTILINE)
    return line.split()


def test_every_dependency_is_one_of_trainings_or_of_dashboards() -> None:
    needed = {Requirement(each).name for each in PROJECT["dependencies"]}
    of_dashboards = {package.replace("_", "-") for package in OF_DASHBOARDS}
    assert needed == {"torch", *_packages_of_trainings()} | of_dashboards


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with torch, hookcore, and the packages of trainings, but none of those of dashboards."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for place in {place for name in _closure(["torch", *_packages_of_trainings()]) for place in _places_of(name)}:
        (packages / place.name).symlink_to(place)
    (packages / "hookcore").symlink_to(ROOT / "hookcore")
    (packages / "hookcore_app").symlink_to(ROOT / "app")
    return folder / "bin" / "python"


def _closure(names: list[str]) -> Iterator[str]:
    """Yield what these packages need. torch imports jinja2 only to generate code."""
    found, waiting = set(OF_DASHBOARDS), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            yield name
            wanted = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
            waiting += [each.name.lower() for each in wanted if not each.marker or each.marker.evaluate({"extra": ""})]


def _places_of(name: str) -> Iterator[Path]:
    """Yield a package's files and folders in the folder of all packages."""
    package = importlib.metadata.distribution(name)
    for first in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
        yield Path(str(package.locate_file(first)))


def _run(python: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAINING)
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HOOKCORE_", "PYTHON"))}
    environment = {**others, "HOOKCORE_HOME": str(folder / "home"), "HOOKCORE_PORT": "0", **variables}
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_packages_of_dashboards_cannot_be_imported_there(python: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u, sys; print([each for each in sys.argv[1:] if u.find_spec(each)])"
    assert _run(python, tmp_path, "-c", code, *OF_DASHBOARDS).stdout == "[]\n"


def test_a_training_sends_all_its_steps_without_the_packages_of_dashboards(python: Path, tmp_path: Path) -> None:
    with served() as server:
        variables = {"HOOKCORE_URL": server.url, "HOOKCORE_TOKEN": TOKEN}
        done = _run(python, tmp_path, "train.py", "{}", **variables)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("waiting=0, in_flight=0") == done.stdout.count("dropped={}") == 2, done.stdout
        assert [run.steps for run in server.runs.all()] == [20, 20]
        done = _run(python, tmp_path, "-m", "hookcore_app.cli", "run", "train.py", "{}", **variables)
        assert done.returncode == 0, done.stdout
        done = _run(python, tmp_path, "-m", "hookcore_app.cli", "check", server.url, "--run", "lean", **variables)
        assert "lean" in done.stdout, done.stdout
        newest = server.runs.all()[0].id
        done = _run(python, tmp_path, "-m", "hookcore_app.cli", "why", server.url, "--run", newest, **variables)
        assert '"lean": ended, up to step 19.' in done.stdout, done.stdout


@pytest.mark.parametrize("given", ["dict(server='thread')", "dict(server=None, keep='kept')"])
def test_what_needs_more_says_what_to_install(python: Path, tmp_path: Path, given: str) -> None:
    done = _run(python, tmp_path, "train.py", given)
    assert re.search(r"ArgumentError: \w+ is not installed: .*Run `pip install hookcore`", done.stdout), done.stdout


def test_a_training_without_an_address_runs_on_and_says_what_to_install(python: Path, tmp_path: Path) -> None:
    done = _run(python, tmp_path, "train.py", "{}")
    assert done.returncode == 0, done.stdout
    assert "hookcore: no dashboard: anyio is not installed" in done.stdout
    assert "or set HOOKCORE_URL to the address of a server. The run stays in watcher.store." in done.stdout


def test_a_training_whose_server_is_away_says_what_would_keep_its_data(python: Path, tmp_path: Path) -> None:
    done = _run(python, tmp_path, "train.py", "{}", HOOKCORE_URL="http://127.0.0.1:1")
    assert done.returncode == 0, done.stdout
    assert "They can't be kept on disk: pyarrow is not installed" in done.stdout


@pytest.mark.parametrize("command", ["serve", "collect --to http://127.0.0.1:1", "open .", "demo --server thread"])
def test_a_command_that_needs_more_says_what_to_install(python: Path, tmp_path: Path, command: str) -> None:
    done = _run(python, tmp_path, "-m", "hookcore_app.cli", *command.split())
    assert done.returncode == 2, done.stdout
    assert re.search(r"^hookcore: .* is not installed|^hookcore: .* cannot be imported", done.stdout, re.M), done.stdout
    assert "Traceback" not in done.stdout


def test_commands_that_ask_nothing_else_work(python: Path, tmp_path: Path) -> None:
    assert _run(python, tmp_path, "-m", "hookcore_app.cli", "status").stdout == "no dashboard is running\n"
    assert "usage: hookcore" in _run(python, tmp_path, "-m", "hookcore_app.cli", "--help").stdout
