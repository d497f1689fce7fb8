"""The file of a capsule: a ZIP archive with a readable description and the pickled step."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import IO, Any, Final, cast

import torch

from hookcore.delivery.dashboard.capsules import ABOUT, FRAMES, opened
from hookcore.delivery.dashboard.whole import whole_file
from hookcore.errors import CapsuleError

WARNING: Final = "Opening this capsule runs code from it: it contains pickles. Replay only capsules that you trust."
_STEP: Final = "step.pt"
_MAIN: Final = b"__main__"


class _Limited(io.RawIOBase):
    """A stream that refuses more bytes than a limit."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        super().__init__()
        self._stream, self._left, self._max = stream, max_bytes, max_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise CapsuleError(f"the step takes more than max_bytes={self._max:,}: give a higher limit")
        return self._stream.write(data)


def write_capsule(
    path: Path, about: dict[str, Any], step: dict[str, Any], max_bytes: int, frames: bytes | None = None
) -> int:
    """Write a capsule and return its size. The file appears whole or not at all."""
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=2))
        if frames is not None:
            archive.writestr(FRAMES, frames, zipfile.ZIP_DEFLATED, compresslevel=1)
        with archive.open(_STEP, "w", force_zip64=True) as stream:
            torch.save(step, cast(IO[bytes], _Limited(stream, max_bytes)))
    return path.stat().st_size


def needs_main(path: str | os.PathLike[str]) -> bool:
    """Return whether the step refers to what the main script defines."""
    with opened(path) as archive, archive.open(_STEP) as file, zipfile.ZipFile(file) as step:
        return any(_MAIN in step.read(name) for name in step.namelist() if name.endswith("data.pkl"))


def read_step(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the step. This runs code from the capsule."""
    device = None if torch.cuda.is_available() else "cpu"
    with opened(path) as archive, archive.open(_STEP) as file:
        step: dict[str, Any] = torch.load(file, map_location=device, weights_only=False)
    return step
