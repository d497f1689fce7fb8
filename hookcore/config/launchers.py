"""The environment variables that the launcher of a distributed training sets for a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The rank, the number of ranks, and the rank on its machine. The first launcher that names all of the first two counts.
_BY_ADDRESS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # torchrun, Accelerate, DeepSpeed
_LIGHTNING: Final = ("NODE_RANK", "WORLD_SIZE", "LOCAL_RANK")  # which names the machine's rank instead of the process's
_SLURM: Final = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_LAUNCHERS: Final = (_BY_ADDRESS, _LIGHTNING, *_MPI, _SLURM)
_PSEUDO_STEPS: Final = 0xFFFFFFF0  # numbers of Slurm's steps from here on are no tasks: the batch script, a shell
_TORCHRUN: Final = "torchrun"
MEETING: Final = "meeting"  # of a job that only the address says
_NO_ID: Final = "none"  # of torchrun, if it was given none
_SOME_NODES: Final = re.compile(r"--nnodes[= ]\d+:\d")  # an argument of torchrun: how many machines there may be
_STARTED_BY: Final = (
    ("torchrun", "TORCHELASTIC_RUN_ID"),
    ("DeepSpeed", "CROSS_SIZE"),
    ("Accelerate", "ACCELERATE_MIXED_PRECISION"),
    ("MPI", "OMPI_COMM_WORLD_RANK"),
    ("srun", "SLURM_STEP_ID"),
    ("MPI", "PMI_RANK"),
)
# A cluster, and its variables for the id, the name, and the task of a job.
_CLUSTERS: Final = (
    ("Slurm", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_TASK_ID"),
    ("LSF", "LSB_JOBID", "LSB_JOBNAME", "LSB_JOBINDEX"),
    ("PBS", "PBS_JOBID", "PBS_JOBNAME", "PBS_ARRAY_INDEX"),
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that was launched together with others."""

    rank: int
    world: int
    local_rank: int
    attempt: int  # how often the launcher has restarted it
    job: tuple[str, ...]  # identifies the training as far as possible: all its processes have it, and no others
    is_certain: bool  # whether they train one model: tasks of a scheduler may be independent, and variables stale


def launched(mark_of: Callable[[int], str], environment: Mapping[str, str] | None = None) -> Launched | None:
    """Return the launch that the environment describes, or None if it is incomplete or has only one process.

    `mark_of` returns a mark that identifies a process across all machines.
    """
    given = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        rank, world, local = (_number(given, name) for name in names)
        if rank is None or world is None or (names is _SLURM and not _in_a_step(given)):
            continue
        if names is _LIGHTNING:
            rank = local if rank == 0 else None  # of other machines, only the process group knows
        if rank is None or world < 2 or rank >= world:
            return None
        job = _job_of(names, given, mark_of)
        if not job and names in _MPI:
            continue  # srun sets some of MPI's variables
        return Launched(rank, world, local or 0, _attempt(given), job, job[0] == _TORCHRUN) if job else None
    return None


def rank(environment: Mapping[str, str] | None = None) -> str:
    """Return this process's rank: "0" for the first process, also outside of a distributed training."""
    given = os.environ if environment is None else environment
    if not given.get("RANK") and (given.get("NODE_RANK") or given.get("LOCAL_RANK")):  # Lightning's own launcher
        node, local = given.get("NODE_RANK") or "0", given.get("LOCAL_RANK") or "0"
        return local if node == "0" else f"{node}.{local}"
    return next((given[names[0]] for names in _LAUNCHERS if given.get(names[0])), "0")


def facts_of_job(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the known facts about the program that started this process, and about its cluster job."""
    given = os.environ if environment is None else environment
    launcher = next((name for name, variable in _STARTED_BY if given.get(variable)), "")
    run_id = given.get("TORCHELASTIC_RUN_ID", "")
    found = {"launcher": launcher, "launcher.id": "" if run_id == _NO_ID else run_id}
    for cluster, variable, title, task in _CLUSTERS:
        if given.get(variable):
            found |= {"job": f"{cluster} {given[variable]}"}
            found |= {"job.name": given.get(title, ""), "job.task": given.get(task, "")}
            break
    return {name: text for name, text in found.items() if text}


def is_elastic(agent: int, given: Mapping[str, str]) -> bool:
    """Return whether a torchrun, which is this process, may run on more machines at another time."""
    try:
        words = Path(f"/proc/{agent}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        words = ""
    return ":" in given.get("PET_NNODES", "") or _SOME_NODES.search(words) is not None


def has_terminal() -> bool:
    """Return whether this process belongs to a terminal, whatever its input and output are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | getattr(os, "O_NOCTTY", 0)))
    except OSError:  # Windows has none
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether this address is every machine's own."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _job_of(names: tuple[str, ...], given: Mapping[str, str], mark_of: Callable[[int], str]) -> tuple[str, ...]:
    """Return an identifier of the training, or an empty string."""
    step = _slurm_step(given)
    meeting = (given.get("MASTER_ADDR", ""), given.get("MASTER_PORT", ""))
    if names is _SLURM:
        return step
    if names in _MPI:
        name = given.get("PMIX_NAMESPACE", "")  # not PMI_ID: that is Hydra's name for a rank
        return ("mpi", name, *(meeting if all(meeting) else ()), *step) if name else ()
    if names is _BY_ADDRESS and (run_id := given.get("TORCHELASTIC_RUN_ID", "")):
        # On one machine, torchrun itself is the parent of all ranks, and another training has another torchrun.
        is_alone = given.get("GROUP_WORLD_SIZE") == "1" and not is_elastic(os.getppid(), given)
        agent = (mark_of(os.getppid()),) if is_alone else ()
        # torchrun meets elsewhere when it loses the machine of rank 0, but stays in its step.
        return (_TORCHRUN, run_id, *(agent or (meeting if run_id == _NO_ID and not step else ())), *step)
    if not all(meeting):
        return ()
    if not is_loopback(meeting[0]) or step:
        return (MEETING, *meeting, *step)
    # Lightning's first process starts the others of its machine.
    leads = names is _LIGHTNING and given.get("LOCAL_RANK") == "0"
    return (MEETING, *meeting, mark_of(os.getpid() if leads else os.getppid()))


def _slurm_step(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return an identifier of the tasks that one `srun` started, or an empty string outside of them."""
    if not _in_a_step(given):
        return ()
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return ("slurm", *(given.get(name, "") for name in names))


def _in_a_step(given: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process as a task, rather than a shell that may start anything."""
    step = _number(given, "SLURM_STEP_ID")
    is_step = step is not None and step < _PSEUDO_STEPS and bool(given.get("SLURM_JOB_ID"))
    # Steps that are started from such a shell have its variables, but not its terminal.
    return is_step and not (given.get("SLURM_PTY_PORT") and has_terminal())


def _attempt(given: Mapping[str, str]) -> int:
    """Return how often it was restarted: each time that Slurm starts the job again, torchrun counts from zero."""
    again, requeued = _number(given, "TORCHELASTIC_RESTART_COUNT") or 0, _number(given, "SLURM_RESTART_COUNT") or 0
    return requeued * ((_number(given, "TORCHELASTIC_MAX_RESTARTS") or 0) + 1) + again


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
