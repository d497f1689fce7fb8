"""All commands work with the wheel in a separate environment, even in a user's folder with an `app.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hookcore
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
DOCUMENTATION = "<!doctype html><title>The documentation of this wheel</title>"
pytestmark = [pytest.mark.slow, pytest.mark.all]

TRAIN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
print("arguments", sys.argv[1:])
"""
READ = """
import sys, hookcore
client = hookcore.Client(sys.argv[1])
names = {run.name for run in client.runs()}
latest = client.latest(run=client.runs()[0].id, kind="output")
print(len(names), len(latest.taps) > 0)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        _copy_of_the_source(folder / "source"),
    ]
    _write_a_site(folder / "source/build/site" / hookcore.__version__)
    subprocess.run([*pip, *build], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel. All other packages come from this one, but not the source tree."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    install = ["install", "--no-deps", "--quiet", "--disable-pip-version-check", "--target", packages, wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    # A plain folder, because the .pth files in site folders are read, and one may lead to the source tree.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """Return a user's folder."""
    (tmp_path / "app.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "read.py").write_text(READ)
    return tmp_path


def _copy_of_the_source(folder: Path) -> Path:
    """Copy the source, because a build leaves folders next to it, and must not find those of another build."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for file in [*(ROOT / "hookcore").rglob("*"), *(ROOT / "app").rglob("*")]:
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
            target = folder / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return folder


def _write_a_site(folder: Path) -> None:
    """Write what stands for the documentation that `make site` builds."""
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(DOCUMENTATION)


def _call(python: Path, user: Path, *arguments: str) -> str:
    """Run a command, and return its terminal output."""
    done = subprocess.run(
        [python, *arguments],
        cwd=user,
        env=_environment(user),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _environment(user: Path) -> dict[str, str]:
    return {**os.environ, "HOOKCORE_HOME": str(user / "home"), "OMP_NUM_THREADS": "1"}


@contextmanager
def _serving(python: Path, user: Path) -> Iterator[str]:
    """Start a server, and return it with its URL."""
    log = user / "server.log"
    with log.open("wb") as out:
        command = [python, "-m", "hookcore_app.cli", "serve", "--port", "0"]
        server = subprocess.Popen(command, cwd=user, env=_environment(user), stdout=out, stderr=out)
    try:

        def address() -> re.Match[str] | None:
            assert server.poll() is None, log.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

        yield wait_for(address, "the server's address")[0]
    finally:
        server.terminate()
        assert server.wait(PATIENCE_S) == 0


def test_the_wheel_contains_the_pages_and_nothing_else_of_the_source_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = ROOT / "app/static", ROOT / "app/templates"
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert {f"hookcore_app/{file.relative_to(ROOT / 'app')}" for file in files} <= names
    assert {"hookcore/py.typed", "hookcore_app/py.typed"} <= names
    assert not [name for name in names if name.startswith(("app/", "tests/", "benchmarks/"))]


def test_the_wheel_contains_the_compiled_kernel_and_runs_on_every_python_since_3_10(wheel: Path) -> None:
    _, _, python_tag, abi_tag, platform_tag = wheel.stem.split("-")
    assert (python_tag, abi_tag) == ("cp310", "abi3")
    assert "manylinux_2_17" in platform_tag
    with zipfile.ZipFile(wheel) as archive:
        assert {"hookcore/observe/_kernel.abi3.so", "hookcore/delivery/_signals.abi3.so"} <= set(archive.namelist())


def test_the_installed_kernel_is_the_compiled_one(python: Path, user: Path) -> None:
    code = "from hookcore.observe import cpu; print(repr(cpu.FALLBACK_REASON), cpu.observe)"
    told = _call(python, user, "-c", code)
    assert told.startswith("'' <built-in"), told


def test_the_wheel_works_next_to_a_users_own_app(python: Path, user: Path) -> None:
    code = (
        "import app, hookcore, hookcore_app.main as server, hookcore.hooks, hookcore.hooks.compiled\n"
        "from hookcore_app.runs import Runs\n"
        "from hookcore_app.settings import ServerSettings\n"
        "assert app.MINE and 'environment' in hookcore.__file__ and 'environment' in server.__file__\n"
        "application = server.create_app(Runs(ServerSettings()), ServerSettings())\n"
        "assert application.url_path_for('runs_page') == '/'\n"
        "assert hookcore.watch\n"
    )
    _call(python, user, "-c", code)


def test_serve_run_demo_and_the_client_work_there(python: Path, user: Path) -> None:
    with _serving(python, user) as url:
        command = ("-m", "hookcore_app.cli")
        told = _call(python, user, *command, "run", "--server", url, "train.py", "--lr", "3")
        assert "arguments ['--lr', '3']" in told
        with urllib.request.urlopen(f"{url}/docs/") as page:
            assert page.read().decode() == DOCUMENTATION
        told = _call(python, user, *command, "demo", "--server", url, "--steps", "30")
        assert url in told.splitlines()[0]
        assert _call(python, user, "read.py", url).split() == ["2", "True"]


def test_help_needs_no_torch(python: Path, user: Path) -> None:
    code = (
        "import sys\n"
        "from hookcore_app.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'fastapi', 'uvicorn', 'pyarrow'} & set(sys.modules)\n"
    )
    assert "demo" in _call(python, user, "-c", code)
