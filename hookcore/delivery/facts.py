"""Facts about a run that are detected automatically, and its process's place in a distributed training."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from hookcore.config import (
    MEETING,
    Flat,
    Launched,
    cut_text,
    facts_of_job,
    flatten,
    is_loopback,
    launched,
    value_of_text,
    without_secrets,
)
from hookcore.delivery.dashboard.private import mark_of
from hookcore.records import Value, text_of
from hookcore.records.wire import Place
from hookcore.store.rankstep import MAX_WORLD

MAX_ARGUMENTS: Final = 1000  # characters
GIT_S: Final = 10.0  # a large repository on a slow disk is given up
# Never writes, and runs no program that the repository's own settings name.
_GIT: Final = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NOTEBOOK: Final = "ipykernel_launcher.py"
_OPTION: Final = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"\+{0,2}([A-Za-z_][\w./-]*)=(.*)", re.DOTALL)  # as Hydra has them

Learn = Callable[[Mapping[str, Value]], None]


def arguments_text(arguments: Sequence[str]) -> str:
    """Return a script's arguments as one writes them in a shell, without the values of secrets."""
    shown, is_secret = [], False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if is_secret and not argument.startswith("-"):
            shown.append(str(without_secrets("token", argument)))
        elif equals:
            shown.append(f"{name}={without_secrets(name, value)}")
        else:
            shown.append(str(without_secrets("", argument)))
        is_secret = not equals and argument.startswith("--") and without_secrets(argument, "any") != "any"
    return cut_text(text_of(shlex.join(shown)), MAX_ARGUMENTS)


def config_of_arguments(arguments: Sequence[str]) -> Flat:
    """Return the configuration that a command line gives: `--lr 0.1`, `--lr=0.1`, or `optimizer.lr=0.1`.

    Several numbers after an option are a list. A text after its value may be anything, and is left out.
    """
    config: dict[str, Any] = {}
    waiting = listing = ""  # an option whose value may follow, and one with numbers, of which there may be more
    for argument in arguments:
        option, assignment = _OPTION.fullmatch(argument), _ASSIGNMENT.fullmatch(argument)
        if option is not None and argument.startswith("--"):
            name = option[1].replace("-", "_")
            config[name] = True if option[2] is None else value_of_text(option[2])
            waiting, listing = name if option[2] is None else "", ""
        elif option is not None:
            waiting = listing = ""  # a short one says too little
        elif waiting:
            config[waiting] = value_of_text(argument)
            waiting, listing = "", waiting if _is_number(argument) else ""
        elif listing and _is_number(argument):
            before = config[listing]
            config[listing] = [*(before if isinstance(before, list) else [before]), value_of_text(argument)]
        elif assignment is not None:
            config[assignment[1].replace("/", ".")], listing = value_of_text(assignment[2]), ""
        else:
            listing = ""
    return flatten(config)


def _is_number(text: str) -> bool:
    return isinstance(value_of_text(text), int | float) and not isinstance(value_of_text(text), bool)


def script_arguments() -> Sequence[str]:
    """Return the arguments of this process's script; none in a notebook, whose arguments are Jupyter's."""
    return () if not sys.argv or Path(sys.argv[0]).name == _NOTEBOOK else sys.argv[1:]


def facts_at_start() -> dict[str, Value]:
    """Return the facts that cost nothing."""
    arguments = script_arguments()
    facts: dict[str, Value] = {"arguments": arguments_text(arguments)} if arguments else {}
    return facts | {name: cut_text(text_of(text), MAX_ARGUMENTS) for name, text in facts_of_job().items()}


def learn_commit(learn: Learn) -> threading.Thread | None:
    """Look for the commit of the script's code on a thread of its own, because git may take long."""
    if shutil.which("git") is None:
        return None
    thread = threading.Thread(target=_learn_commit, args=(learn,), name="hookcore-git", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: an unknown commit is no reason not to train
        return None
    return thread


def _learn_commit(learn: Learn) -> None:
    facts = commit_of(_folder_of_script())
    if facts:
        learn(facts)


def commit_of(folder: Path) -> dict[str, Value]:
    """Return the commit of a folder, and whether files that git knows have changed since; {} if that is unknown."""
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return {}
    changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return {"git.commit": commit} | ({} if changed is None else {"git.dirty": bool(changed)})


def _folder_of_script() -> Path:
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    try:
        return script.resolve().parent if script is not None and script.is_file() else Path.cwd()
    except OSError:
        return Path("/")  # the folder was removed


def _ask_git(folder: Path, *words: str) -> str | None:
    # Variables such as GIT_DIR, which a git hook sets, would lead to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            [*_GIT, "-C", str(folder), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return text_of(done.stdout.decode("utf-8", "backslashreplace").strip()) if done.returncode == 0 else None


# A process's place among those that train one model together. Imports no torch.

JOB_CHARACTERS: Final = 32
PREFIX: Final = "ranks-"  # of the id of the run of all ranks, before the job


@cache
def mark(pid: int) -> str:
    """Return a mark that identifies a process across all machines."""
    return mark_of(pid) or f"{socket.gethostname()}/{pid}"


def place_by_launcher(watch: str) -> Place | None:
    """Return the place that the launcher alone makes certain; None before the process group exists, for most of them.

    `watch` is what the watch has in common with those of other ranks, and with no other one of this process.
    """
    launch = launched(mark)
    return _place(launch, watch) if launch is not None and launch.is_certain else None


def place_in_group(watch: str, rank: int, world: int, meeting: tuple[str, ...]) -> Place | None:
    """Return the place of a rank of the default process group, or None if its training can't be told from others.

    `meeting` is where the processes of the group met: `("tcp", host, port)`, `("file", path)`, or nothing.
    """
    launch = launched(mark)
    if world < 2:
        return None
    is_launch = launch is not None and (launch.rank, launch.world) == (rank, world)
    # Some launchers use a file and set an address too, and set the rank right for some processes only.
    if launch is not None and is_launch and not (launch.job[0] == MEETING and meeting[:1] == ("file",)):
        return _place(launch, watch)
    # Variables of another launch, or none: the script called `init_process_group` with its own ranks.
    job = _job_of(meeting)
    local = rank if job and _is_here(meeting) else 0
    return _place(Launched(rank, world, local, 0, job, True), watch) if job else None


def _job_of(meeting: tuple[str, ...]) -> tuple[str, ...]:
    if meeting[:1] == ("tcp",):
        return (*meeting, mark(os.getppid())) if _is_here(meeting) else meeting
    if meeting[:1] == ("file",):
        try:
            inode = os.stat(meeting[1]).st_ino
        except OSError:
            return ()
        return (*meeting, socket.gethostname(), str(inode))
    return ()


def _is_here(meeting: tuple[str, ...]) -> bool:
    return meeting[0] == "file" or is_loopback(meeting[1])


def _place(launch: Launched, watch: str) -> Place:
    texts = "\0".join((*launch.job, watch))
    job = hashlib.sha256(texts.encode(errors="surrogateescape")).hexdigest()[:JOB_CHARACTERS]
    return Place(job=job, rank=launch.rank, world=launch.world, local_rank=launch.local_rank, attempt=launch.attempt)


def joint_id(place: Place | None) -> str | None:
    """Return the id of the run of all ranks; None for a process without others."""
    return None if place is None or not 2 <= place.world <= MAX_WORLD else PREFIX + place.job


def completed(place: Place, device: str, axes: dict[str, tuple[int, int]]) -> Place:
    """Return the place with what only a training in progress shows."""
    return structs.replace(place, device=device or place.device, axes=axes)
