"""The commands in the documentation: those in blocks run in a real shell, and those in text are checked.

The blocks of a page are one script, from top to bottom, which ends at the first command that fails. It runs in the
reader's place: in a folder with a small training called train.py, with this environment's commands. A server with known
runs listens where the page says `127.0.0.1:8642` or `box:8642`. The commands of a comment `<!-- setup sh ... -->` run
too; `<!-- not run: reason -->` exempts the block below it. A `hookcore` that imports torch itself is a fork of a Python
that has done so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hookcore.capsules import record
from hookcore.config import SETTINGS
from hookcore.delivery.dashboard.capsules import folder_of, path_of, prepare
from hookcore.delivery.dashboard.process import status, stop_dashboard
from hookcore.records import Snapshot, Tap
from hookcore_app import cli
from tests.api_world import attend, fill, fill_ranks, open_run
from tests.manual import PAGES, ROOT, blocks_of, inline_code_of, name_of
from tests.serving import TOKEN, Served, served
from tests.warm import python
from tests.webhook import webhook

MAX_EXEMPT = 7  # blocks in all pages together that need Docker, clusters, other machines, downloads, or minutes
PATIENCE_S = 250.0
WITH_COMMANDS = [page for page in PAGES if any(not block.exempt for block in blocks_of(page, "sh"))]
# A command that runs until it is stopped is stopped after its expected output. `make` only prints its commands, and
# `pip` does nothing.
PRELUDE = """
set -euo pipefail
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
until_it_says() { local words=$1; shift; grep -m1 -- "$words" < <(command "$@" 2>&1); }
curl() {
    case " $* " in
        *" -N "*) until_it_says "^data:" curl -sS --fail "$@" ;;
        *) command curl -sS --fail-with-body "$@" ;;
    esac
}
hookcore() {
    case $1 in
        serve | open | collect) until_it_says "http://" hookcore "$@" ;;
        demo) command hookcore "$@" --steps 3 ;;
        *) command hookcore "$@" ;;
    esac
}
pip() { [ "$1" = install ]; }
make() { command make --dry-run -C "$CHECKOUT" "$@" > /dev/null; }
"""
COMMAND = """#!/bin/sh
case $1 in
    run) exec {hookcore} "$@" ;;
    *) exec {python} -m hookcore_app.cli "$@" ;;
esac
"""
TRAINING = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def world() -> Iterator[Served]:
    with webhook() as hook, served(lost_after_s=10_000.0, notify=(hook.url,)) as server:
        for name in ("old", "run-2", "run-1"):
            run = attend(fill(open_run(server.runs, name, started_s=2.0)))
            text = np.frombuffer(b"some words", np.uint8)
            run.store.add_snapshot(Snapshot(Tap("words", "output"), 3, 0.0, "text/plain", text.shape, text))
        fill_ranks(server.runs, started_s=1.0)
        saved = folder_of(server.runs.all()[0].id)
        save_step(saved)
        yield server
    shutil.rmtree(saved)


def save_step(folder: Path) -> None:
    """Save step 100 of a small training."""
    prepare(folder)
    model = nn.Linear(2, 2)
    with record(model, path_of(folder, 100), "asked") as recording:
        recording.step = 100
        model(torch.ones(1, 2)).sum().backward()
        assert recording.write()


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a reader: a folder with a training, hookcore's commands, and a temporary dashboard."""
    home, binaries = tmp_path / "home", Path(sys.executable).parent
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    (folder / ".venv").symlink_to(binaries.parent)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hookcore"
    command.write_text(COMMAND.format(python=python(), hookcore=binaries / "hookcore"))
    command.chmod(0o700)
    others = {name: value for name, value in os.environ.items() if not name.startswith("HOOKCORE_")}
    given = {
        **others,
        "PATH": os.pathsep.join((str(command.parent), str(binaries), os.environ["PATH"])),
        "HOOKCORE_HOME": str(home),
        "HOOKCORE_PORT": "0",
        "HOOKCORE_TOKEN": TOKEN,
        "CHECKOUT": str(ROOT),
    }
    yield given
    if home.exists() and status(given).running:
        stop_dashboard(given)


def run(script: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a script, and return its exit code and output. Everything that it started ends with it."""
    said = folder.with_suffix(".said")
    with said.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):  # everything has already ended
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return code, said.read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_the_commands_of_a_page_run_from_top_to_bottom(
    page: Path, world: Served, environment: dict[str, str], tmp_path: Path
) -> None:
    commands = "\n".join(block.text for block in blocks_of(page, "sh") if not block.exempt)
    placed = re.sub(r"\b(127\.0\.0\.1|box):8642\b", f"127.0.0.1:{world.port}", commands)
    code, said = run(PRELUDE + placed, tmp_path / "work", environment)
    assert code == 0, said


def test_a_command_that_fails_ends_a_page(environment: dict[str, str], tmp_path: Path) -> None:
    for wrong in ("hookcore fly", "hookcore serve --no-such-flag", "make no-such-target", "curl http://127.0.0.1:1/"):
        code, said = run(f"{PRELUDE}{wrong}\necho went on", tmp_path / "work", environment)
        assert code != 0, said
        assert "went on" not in said


def test_hardly_any_commands_are_exempt_from_running() -> None:
    assert sum(block.exempt for page in PAGES for block in blocks_of(page, "sh")) <= MAX_EXEMPT


def _commands() -> dict[str, argparse.ArgumentParser]:
    actions = cli.make_parser()._actions
    found = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _flags_of(command: argparse.ArgumentParser) -> set[str]:
    return {flag for action in command._actions for flag in action.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_hookcore_commands_that_a_page_names_exist_with_their_flags(page: Path) -> None:
    commands = _commands()
    for code in inline_code_of(page):
        found = re.match(r"(?:[A-Z_]+=\S+ |torchrun .*)*(?:\S+/)?hookcore ([a-z].*)", code)
        if found:
            name, *words = shlex.split(found[1])
            assert name in commands, f"{name_of(page)}: `{code}`"
            _check_flags(commands[name], name, words, f"{name_of(page)}: `{code}`")


def _check_flags(command: argparse.ArgumentParser, name: str, words: list[str], where: str) -> None:
    if name == "run":  # arguments after the script belong to the script
        words = words[: next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))]
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in _flags_of(command), where


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_flag_in_the_docs_belongs_to_a_command(page: Path) -> None:
    known = {flag for command in _commands().values() for flag in _flags_of(command)}
    named = {code.split()[0].partition("=")[0] for code in inline_code_of(page) if re.match(r"--[a-z]", code)}
    docker_and_launchers = {"--gpus", "--mpi", "--nnodes", "--rdzv-id"}
    sources = [file.read_text() for file in (ROOT / "benchmarks").glob("*.py")]
    benchmarks = {flag for source in sources for flag in re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source)}
    assert named - known <= docker_and_launchers | benchmarks


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_modules_that_a_page_runs_exist(page: Path) -> None:
    for code in [*inline_code_of(page), *(block.text for block in blocks_of(page, "sh"))]:
        for module in re.findall(r"\bpython -m ((?:hookcore|hookcore_app|benchmarks|pytest|tests)[\w.]*)", code):
            assert importlib.util.find_spec(module), f"{name_of(page)} runs {module}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_variables_that_a_page_names_are_settings(page: Path) -> None:
    known = set(re.findall(r"`(HOOKCORE_\w+)`", (ROOT / "docs" / "settings.md").read_text()))
    assert {setting.variable for setting in SETTINGS} <= known
    assert set(re.findall(r"\bHOOKCORE_[A-Z_]*[A-Z]\b", page.read_text())) <= known
