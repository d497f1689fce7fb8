"""The types that a user's strict checker and editor see, without this project's own settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookcore

pytestmark = [pytest.mark.slow, pytest.mark.all]

ROOT = Path(__file__).parents[2]
ASKED = {
    'hookcore.Client("http://localhost").runs()': "list[hookcore.reading.answers.runs.Run]",
    'hookcore.Client("http://localhost").latest()': "hookcore.reading.answers.series.Latest",
    "watcher.reader()": "hookcore.reading.reader.Reader",
    "watcher.incidents()[0]": "hookcore.reading.answers.findings.Incident",
    "watcher.store": "hookcore.store.store.Store",
    "watcher.settings": "hookcore.config.settings.Settings",
}


def test_a_strict_checker_knows_the_type_of_every_public_name(tmp_path: Path) -> None:
    names = [f"hookcore.{name}" for name in hookcore.__all__ if name not in ("hooks", "probes")]
    asked = [
        *names,
        *(f"hookcore.{room}.{name}" for room in ("hooks", "probes") for name in getattr(hookcore, room).__all__),
    ]
    lines = ["import hookcore", "def of(watcher: hookcore.Watcher) -> None:"]
    script = tmp_path / "script.py"
    script.write_text("\n".join([*lines, *(f"    reveal_type({each})" for each in (*asked, *ASKED))]) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(script)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r'Revealed type is "(.*)"$', done.stdout, re.MULTILINE)
    assert len(found) == len(asked) + len(ASKED), done.stdout
    assert [name for name, told in zip(asked, found, strict=False) if told == "Any"] == []
    assert dict(zip(ASKED, found[len(asked) :], strict=True)) == ASKED
