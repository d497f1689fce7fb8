"""Scripts as processes, under plain Python and under `hookcore run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = [sys.executable]
WATCHED = [sys.executable, "-m", "hookcore_app.cli", "run"]
PATIENCE_S = 240


def run(
    command: Sequence[str | Path], folder: Path, text: bool = True, **environment: str
) -> subprocess.CompletedProcess[Any]:
    """Run a command in a folder. A watched command sends its frames nowhere, or to the folder `keep`."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=text,
        timeout=PATIENCE_S,
    )


def assert_same_weights(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        if isinstance(value, Mapping):
            assert_same_weights(value, other[name])
        else:
            assert torch.equal(value, other[name]), name
