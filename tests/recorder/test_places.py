"""The place of a process in a distributed training, derived from its launcher or from the process group."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hookcore
from hookcore.config import launched, rank
from hookcore.delivery import facts as places
from hookcore.delivery.archive import read_archive
from hookcore.records.wire import Place
from tests.commanding import PATIENCE_S
from tests.inside import delivery_of
from tests.ports import free_port
from tests.ranks import run_ranks
from tests.warm import python

SCRIPTS = Path(__file__).parents[1] / "scripts"
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "fleet-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
PAIR = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
LIGHTNING = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **HERE}
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
PARENT, ME = f"mark {os.getppid()}", f"mark {os.getpid()}"
STEP = ("slurm", "", "77", "1")

# Variables -> rank, world, local rank, attempt, job, and whether this is certain without a process group.
KNOWN: dict[str, tuple[dict[str, str], tuple[Any, ...]]] = {
    "torchrun": (TORCHRUN, (3, 4, 1, 2, ("torchrun", "fleet-7"), True)),
    "torchrun without an id": (
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"},
        (3, 4, 1, 2, ("torchrun", "none", "node0", "29500"), True),
    ),
    "torchrun on one machine": (
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"},
        (3, 4, 1, 2, ("torchrun", "none", PARENT), True),
    ),
    "torchrun in a Slurm job that was started again": (
        TORCHRUN | SLURM | {"SLURM_RESTART_COUNT": "1"},
        (3, 4, 1, 6, ("torchrun", "fleet-7", *STEP), True),
    ),
    "torchrun without an id in a Slurm step, which may lose the machine where the ranks met": (
        TORCHRUN | SLURM | {"TORCHELASTIC_RUN_ID": "none"},
        (3, 4, 1, 2, ("torchrun", "none", *STEP), True),
    ),
    "an elastic torchrun that has one machine left": (
        TORCHRUN | {"GROUP_WORLD_SIZE": "1", "PET_NNODES": "1:4"},
        (3, 4, 1, 2, ("torchrun", "fleet-7"), True),
    ),
    "DeepSpeed, or by hand": (PAIR | HERE, (1, 2, 1, 0, ("meeting", "127.0.0.1", "29500", PARENT), False)),
    "by hand on several machines": (
        PAIR | {"MASTER_ADDR": "node0", "MASTER_PORT": "1"},
        (1, 2, 1, 0, ("meeting", "node0", "1"), False),
    ),
    "by hand in a Slurm step, where a script may be each rank's parent": (
        PAIR | HERE | SLURM,
        (1, 2, 1, 0, ("meeting", "127.0.0.1", "29500", *STEP), False),
    ),
    "Lightning": (LIGHTNING, (1, 2, 1, 0, ("meeting", "127.0.0.1", "29500", PARENT), False)),
    "Lightning's first process": (
        LIGHTNING | {"LOCAL_RANK": "0"},
        (0, 2, 0, 0, ("meeting", "127.0.0.1", "29500", ME), False),
    ),
    "Open MPI": (
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "PMIX_NAMESPACE": "prterun-node0-99@1",
        },
        (1, 2, 0, 0, ("mpi", "prterun-node0-99@1"), False),
    ),
    "Slurm": (SLURM, (5, 8, 1, 0, STEP, False)),
    "srun from a shell that salloc started": (SLURM | {"SLURM_JOB_NAME": "interactive"}, (5, 8, 1, 0, STEP, False)),
    "srun bash train.sh": (SLURM | {"SLURM_JOB_NAME": "bash"}, (5, 8, 1, 0, STEP, False)),
    "srun --mpi=pmi2": (SLURM | {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_JOBID": "77.1"}, (5, 8, 1, 0, STEP, False)),
    "Slurm, requeued": (SLURM | {"SLURM_RESTART_COUNT": "2"}, (5, 8, 1, 2, STEP, False)),
}

UNKNOWN: dict[str, dict[str, str]] = {
    "nothing": {},
    "a single process": TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
    "a single task": SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
    "the batch script, not a task": SLURM | {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},
    "sbatch without srun": {name: text for name, text in SLURM.items() if name != "SLURM_STEP_ID"},
    "ranks that meet nowhere": PAIR,
    "MPI without a name of the job": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "Hydra, where PMI_ID is the rank": {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_ID": "1"},
    "Lightning on another machine": LIGHTNING | {"NODE_RANK": "1"},
    "a rank beyond the last": PAIR | HERE | {"RANK": "2"},
    "texts": PAIR | HERE | {"RANK": "one"},
}


def mark(pid: int) -> str:
    return f"mark {pid}"


@pytest.mark.parametrize("name", KNOWN)
def test_launchers_are_recognized(name: str) -> None:
    variables, (its_rank, world, local_rank, attempt, job, is_certain) = KNOWN[name]
    found = launched(mark, variables)
    assert found is not None
    assert (found.rank, found.world, found.local_rank, found.attempt) == (its_rank, world, local_rank, attempt)
    assert (found.job, found.is_certain) == (job, is_certain)
    assert rank(variables) == str(its_rank)


@pytest.mark.parametrize("name", UNKNOWN)
def test_too_few_variables_do_not_identify_a_place(name: str) -> None:
    assert launched(mark, UNKNOWN[name]) is None


def test_a_shell_in_a_slurm_step_is_not_a_task_but_srun_from_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    in_shell = SLURM | {"SLURM_PTY_PORT": "41209"}
    opened, has_terminal = os.open, True

    def open_file(path: Any, *rest: Any, **options: Any) -> int:
        if path != "/dev/tty":
            return opened(path, *rest, **options)
        if not has_terminal:
            raise OSError("this process has no terminal")
        return opened(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(os, "open", open_file)
    assert launched(mark, in_shell) is None
    has_terminal = False
    assert launched(mark, in_shell) is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems show no arguments of a process")
def test_the_arguments_of_torchrun_say_whether_machines_may_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, may in ((["--nnodes=1:4"], True), (["--nnodes", "1:4"], True), (["--nnodes", "4"], False)):
        agent = subprocess.Popen([sys.executable, "-ISc", "print(flush=True); input()", *arguments], **PIPES)
        with agent:
            assert agent.stdout is not None
            agent.stdout.read(1)  # its arguments are known only when it runs
            monkeypatch.setattr(os, "getppid", lambda agent=agent: agent.pid)
            found = launched(mark, {**TORCHRUN, "GROUP_WORLD_SIZE": "1"})
            assert found is not None
            assert (mark(agent.pid) not in found.job) is may  # then the ranks have no common parent
            agent.kill()


def test_a_launcher_of_independent_tasks_is_trusted_if_there_is_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in [name for name in os.environ if name.startswith(("SLURM", "RANK", "WORLD", "MASTER"))]:
        monkeypatch.delenv(variable)
    for variable, text in SLURM.items():
        monkeypatch.setenv(variable, text)
    assert places.place_by_launcher("1") is None
    tcp = ("tcp", "node0", "29500")
    by_slurm, of_another = places.place_in_group("1", 5, 8, tcp), places.place_in_group("1", 1, 2, tcp)
    assert by_slurm is not None
    assert of_another is not None
    assert (by_slurm.rank, by_slurm.world, by_slurm.local_rank) == (5, 8, 1)
    assert (of_another.rank, of_another.world) == (1, 2)
    assert by_slurm.job != of_another.job
    assert places.place_in_group("1", 1, 2, ()) is None  # a custom store: it is unknown which ranks met there
    assert places.place_in_group("1", 0, 1, tcp) is None
    assert places.place_in_group("1", 1, 2, ("file", "/no/such/file")) is None


def test_a_rendezvous_file_takes_precedence_over_an_address_in_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher may give all processes the same rank, and an address that they don't use."""
    for variable in [name for name in os.environ if name.startswith(("SLURM", "TORCHELASTIC"))]:
        monkeypatch.delenv(variable)
    for variable, text in (PAIR | HERE | {"RANK": "0"}).items():
        monkeypatch.setenv(variable, text)
    (tmp_path / "meeting").touch()
    first, second = (places.place_in_group("1", each, 2, ("file", str(tmp_path / "meeting"))) for each in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.rank, first.local_rank, second.rank, second.local_rank) == (0, 0, 1, 1)
    assert first.job == second.job


def test_each_watch_of_a_process_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in TORCHRUN.items():
        monkeypatch.setenv(variable, text)
    first, again, second = (places.place_by_launcher(watch) for watch in ("1", "1", "2"))
    assert first is not None
    assert second is not None
    assert first == again
    assert first.job != second.job
    assert len(first.job) == places.JOB_CHARACTERS


class Teacher(nn.Linear):
    """A model that only one rank watches."""


class Student(nn.Linear):
    """The model that all ranks train."""


def test_a_watch_that_only_one_rank_makes_is_not_mistaken_for_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, text in TORCHRUN.items():
        monkeypatch.setenv(variable, text)

    def jobs(its_rank: str, *models: nn.Module) -> list[str]:
        """Return the jobs of the watches of a new process."""
        monkeypatch.setenv("RANK", its_rank)
        monkeypatch.setattr(sys.modules[hookcore.Watcher.__module__], "numbers", defaultdict(count))
        found = []
        for model in models:
            with hookcore.watch(model, server=None) as watched:
                place = delivery_of(watched).run.place
            assert place is not None
            found.append(place.job)
        return found

    first, second = jobs("0", Teacher(2, 2), Student(2, 2))
    assert jobs("1", Student(2, 2), Student(2, 2))[0] == second
    assert first != second


# --- Real processes -------------------------------------------------------------------------------------------------


def under_torchrun(folder: Path, port: str, what: str) -> dict[int, Place]:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", port]
    return after(folder, *torchrun, str(SCRIPTS / "ranks.py"), what)


def after(folder: Path, *arguments: str) -> dict[int, Place]:
    """Run a launcher, and return the place of each rank from its saved run.

    The launcher may be a fork, but not the processes that it starts: ranks identify their launch by their parent.
    """
    given = {name: text for name, text in os.environ.items() if not name.startswith("HOOKCORE")}
    given |= {"PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python(), *arguments],
        env=given | {"HOOKCORE_SERVER": "none", "HOOKCORE_KEEP": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return places_in(folder)


def places_in(folder: Path) -> dict[int, Place]:
    found = [read_archive(each).info.place for each in folder.iterdir()]
    known = [place for place in found if place is not None]
    assert len(known) == len(found) == 2  # a separate run for each rank
    return {place.rank: place for place in known}


@pytest.mark.slow
@pytest.mark.parametrize(
    "launches", [("restarted",), pytest.param(("watched later", "restarted"), marks=pytest.mark.all)], ids=len
)
def test_the_ranks_of_one_torchrun_have_one_job_and_those_of_the_next_have_another(
    launches: tuple[str, ...], tmp_path: Path
) -> None:
    jobs, port = set(), str(free_port())  # the same one for both
    for number, what in enumerate(launches):
        found = under_torchrun(tmp_path / str(number), port, what)
        assert sorted(found) == [0, 1]
        assert found[0].job == found[1].job
        jobs.add(found[0].job)
        for its_rank, place in found.items():
            assert (place.world, place.local_rank, place.device) == (2, its_rank, "cpu")
            assert place.attempt == (1 if what == "restarted" else 0)
    assert len(jobs) == len(launches)


@pytest.mark.slow
@pytest.mark.all
def test_the_ranks_of_one_accelerate_launch_have_one_job(tmp_path: Path) -> None:
    # Starts several processes without mpirun; --cpu would start one. --multi_gpu needs no GPU if the script uses none.
    machine = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", str(free_port()))
    launch = ("-m", "accelerate.commands.launch", *machine, "--mixed_precision", "no", "--dynamo_backend", "no")
    found = after(tmp_path / "kept", *launch, str(SCRIPTS / "ranks.py"), "watched first")
    assert sorted(found) == [0, 1]
    assert found[0].job == found[1].job
    for its_rank, place in found.items():
        assert (place.world, place.local_rank, place.attempt, place.device) == (2, its_rank, 0, "cpu")


@pytest.mark.slow
@pytest.mark.all
def test_processes_that_lightning_starts_have_one_job(tmp_path: Path) -> None:
    found = after(tmp_path / "kept", str(SCRIPTS / "ranks_lightning.py"))
    assert sorted(found) == [0, 1]
    assert found[0].job == found[1].job
    for folder in (tmp_path / "kept").iterdir():
        run = read_archive(folder)
        taps, place = run.taps(), run.info.place
        assert place is not None
        *_, last = (frame for frame in run.frames() if len(frame.taps))
        assert last.owners is not None
        owners = {(taps[tap].kind, owner) for tap, owner in zip(last.taps.tolist(), last.owners.tolist(), strict=True)}
        assert owners == {("param_grad", 0), ("output", place.rank)}


def work(its_rank: int, folder: str, url: str) -> None:
    """Train twice. On this rank, the server of the second training doesn't exist."""
    os.environ |= {"HOOKCORE_HOME": folder, "GLOO_SOCKET_IFNAME": "lo"}
    model = nn.Linear(4, 2)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hookcore").addHandler(handler)
    with hookcore.watch(model, server=None, keep=f"{folder}/kept", budget=None):  # before the group exists
        dist.init_process_group("gloo", init_method=url, rank=its_rank, world_size=2)
        train(model)
    assert not told
    before = [parameter.clone() for parameter in model.parameters()]
    with hookcore.watch(model, server="http://127.0.0.1:9" if its_rank else None, keep=None, budget=None):
        train(model)
    assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert bool(told) == bool(its_rank)  # on this rank only
    dist.barrier()
    dist.destroy_process_group()


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("meeting", ["tcp", "file"])
def test_processes_of_one_group_without_a_launcher_have_one_job(tmp_path: Path, meeting: str) -> None:
    url = f"tcp://127.0.0.1:{free_port()}" if meeting == "tcp" else f"file://{tmp_path}/meeting"
    run_ranks(work, (str(tmp_path), url), 2)
    found = places_in(tmp_path / "kept")
    assert sorted(found) == [0, 1]
    assert found[0].job == found[1].job
    assert [found[each].local_rank for each in (0, 1)] == [0, 1]
