"""The capsules in the user's private folder. Imports no torch, because the server lists them; none is opened here."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from hookcore.delivery.dashboard.private import open_regular, parsed, read_regular, remove_orphans, whole_file
from hookcore.delivery.dashboard.process import home
from hookcore.errors import CapsuleError, ServerError

FORMAT: Final = 1
ABOUT: Final = "about.json"  # in a capsule
FRAMES: Final = "frames.msgpack"  # in a capsule of a watch: the steps before
MAX_RUNS: Final = 20  # with capsules in the private folder; those of older ones are removed
SUFFIX: Final = ".capsule"
MAX_EXPLANATION: Final = 4 << 20
_EXPLANATION: Final = ".json"  # the result of a replay, next to its capsule
_MAX_ABOUT: Final = 1 << 20
_MAX_CAPSULE: Final = 1 << 50
_FOLDER: Final = "capsules"
_RUN: Final = re.compile(r"[\w-]{1,200}", re.ASCII)
_NAME: Final = re.compile(r"step-\d{9,20}", re.ASCII)


class Occasion(msgspec.Struct, frozen=True):
    """Why another process requested a capsule."""

    incident: str = ""


class Described(msgspec.Struct, frozen=True):
    """The part of a description that is shown without a replay."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    reason: str = ""
    model: str = ""
    weights: str = ""
    time_s: float = float("nan")
    occasion: Occasion | None = None
    main: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    path: str = ""  # of the model in the run
    below: str = ""  # what the paths of its modules begin with


@dataclass(frozen=True, slots=True)
class Saved:
    """A capsule of a run: its file, its description, and the result of a replay, as JSON."""

    path: Path
    about: dict[str, Any]
    described: Described
    size: int
    explained: bytes | None
    trouble: str = ""  # why it can't be read; empty if it can

    @property
    def id(self) -> str:
        """Its name in addresses."""
        return self.path.stem


def folder_of(run: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a run, which may not exist. Raises ServerError without a private folder."""
    if not _RUN.fullmatch(run):
        raise CapsuleError(f"{run!r} is not the id of a run")
    return home(environment) / _FOLDER / run


def path_of(folder: Path, step: int) -> Path:
    """Return the file of a step."""
    return folder / f"step-{step:09}{SUFFIX}"


def prepare(folder: Path) -> None:
    """Create the folder of a run. Only this user can read its files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove_old(folder: Path) -> int:
    """Remove the capsules of all but the newest runs next to this folder. Return how many runs lost theirs."""
    runs = sorted(_runs_in(folder.parent))
    for _, old in runs[:-MAX_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return max(0, len(runs) - MAX_RUNS)


def remove_unfinished(environment: Mapping[str, str] = os.environ) -> int:
    """Remove what killed processes of this user left of capsules. Return how many files there were."""
    with contextlib.suppress(OSError, ServerError):
        return sum(remove_orphans(run) for _, run in _runs_in(home(environment) / _FOLDER))
    return 0


def saved(folder: Path) -> list[Saved]:
    """Return the capsules of a run, oldest step first. Those that can't be read say why."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and _NAME.fullmatch(path.stem))
    except OSError:
        return []
    capsules = []
    for path in paths:
        with contextlib.suppress(OSError):  # removed in the meantime
            capsules.append(_saved(path, path.lstat().st_size))
    return capsules


def _saved(path: Path, size: int) -> Saved:
    try:
        about = read_about(path)
        return Saved(path, about, msgspec.convert(about, Described), size, explanation_of(path))
    except (CapsuleError, msgspec.ValidationError) as error:
        step = int(path.stem.rpartition("-")[2])
        return Saved(path, {}, Described(min(step, 2**53 - 1)), size, None, str(error))


def keep_explanation(path: Path, explanation: bytes) -> None:
    """Write the result of a replay next to its capsule, whole or not at all."""
    with whole_file(path.with_suffix(_EXPLANATION)) as file:
        file.write(explanation)


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the description of a capsule. This runs no code from it."""
    try:
        with opened(path) as archive, archive.open(ABOUT) as file:
            about = parsed(file.read(_MAX_ABOUT))
    except CapsuleError:
        raise
    except Exception as error:  # zipfile passes on those of each kind of compression
        raise CapsuleError(f"{path} can't be read as a capsule: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CapsuleError(
            f"{path} has a format that this version of hookcore doesn't know: replay it with the version that wrote it"
        )
    return about


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """Open the file of a capsule."""
    try:
        with open_regular(path, _MAX_CAPSULE) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise CapsuleError(f"{path} can't be read as a capsule: {error}") from None


def explanation_of(path: Path) -> bytes | None:
    """Return the result of a replay that lies next to a capsule, or None."""
    try:
        return read_regular(path.with_suffix(_EXPLANATION), MAX_EXPLANATION)
    except FileNotFoundError:
        return None
    except OSError as error:
        return msgspec.json.encode({"failure": f"the saved result of the replay can't be read: {error}"})


def _runs_in(folder: Path) -> Iterator[tuple[float, Path]]:
    for run in folder.iterdir():
        with contextlib.suppress(OSError):
            if _RUN.fullmatch(run.name) and run.is_dir() and not run.is_symlink():
                yield run.stat().st_mtime, run
