"""The configuration of a run, its tags, and the facts about it: as given, on the wire, on disk, and in answers."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hookcore
from hookcore.config import Settings, facts_of_job, flatten
from hookcore.config.flat import MAX_CHARACTERS, MAX_VALUES
from hookcore.delivery import facts
from hookcore.delivery.archive import read_archive
from hookcore.delivery.archive.folder import RUN_FILE
from hookcore.delivery.delivery import new_run
from hookcore.errors import ArgumentError, WireError
from hookcore.recorder.known.facts import (
    Facts,
    facts_of_models,
    facts_of_optimizers,
    facts_of_packages,
    facts_of_schedulers,
    options_of_script,
)
from hookcore.records.wire import MAX_VALUES as MAX_IN_MESSAGE
from hookcore.records.wire import RunInfo, decode_batch, encode
from hookcore_app.runs.limits import check, shortened, tamed
from hookcore_app.serving import server_thread
from tests.build import make_info
from tests.serving import World, make_batch, make_world
from tests.waiting import wait_for

# --- Flat ------------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Model:
    width: int = 64
    betas: tuple[float, ...] = (0.9, 0.99)
    layers: list[dict[str, int]] = dataclasses.field(default_factory=lambda: [{"size": 3}, {"size": 5}])


class Hostile:
    """Raises at every operation."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


class Broken(dict[str, Any]):
    """A mapping whose items can't be read, as with an interpolation of a missing key."""

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)


class Endless(OrderedDict[str, int]):
    """An endless mapping without a length."""

    def keys(self) -> Any:
        return iter(self)

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            yield f"key{number}"
            number += 1

    def __getitem__(self, name: str) -> int:
        return 1

    def __len__(self) -> int:
        raise OverflowError


def test_nested_values_are_flattened() -> None:
    given = {
        "lr": 0.1,
        "model": Model(),
        "data": argparse.Namespace(path=Path("/d"), size=SimpleNamespace(x=1)),
        3: "x",
    }
    assert dict(flatten(given).values) == {
        "lr": 0.1,
        "model.width": 64,
        "model.betas": "[0.9, 0.99]",
        "model.layers.0.size": 3,
        "model.layers.1.size": 5,
        "data.path": "/d",
        "data.size.x": 1,
        "3": "x",
    }


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (None, None),
        (True, True),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (2**60, str(2**60)),
        (Color.RED, "RED"),
        (torch.float16, "torch.float16"),
        (torch.device("cpu"), "cpu"),
        (nn.ReLU, "ReLU"),
        ({"b", "a"}, '["a", "b"]'),
        ("\udcff", "\\udcff"),
        (Hostile(), "(Hostile)"),
        (object(), "<object object>"),  # the same in each process
        ([Hostile()], '["(Hostile)"]'),
    ],
)
def test_each_value_becomes_one_of_json_and_none_raises(given: object, value: object) -> None:
    flat = flatten({"it": given})
    assert dict(flat.values) == {"it": value}
    assert type(flat.values["it"]) is type(value)
    assert not flat.cut
    json.dumps(dict(flat.values), allow_nan=False)


def test_unreadable_values_are_named_and_the_rest_is_kept() -> None:
    assert dict(flatten({"bad": Broken(a=1), "good": 2}).values) == {"bad.a": "(KeyError)", "good": 2}


def test_limits_hold_and_everything_that_is_cut_is_counted() -> None:
    assert flatten({f"key{number}": number for number in range(MAX_VALUES + 7)}).cut == 7
    long = flatten({f"key{number}": "x" * 1000 for number in range(MAX_VALUES)})
    assert long.cut == MAX_VALUES  # shortened, or left out
    assert sum(len(name) + len(str(value)) for name, value in long.values.items()) <= MAX_CHARACTERS
    assert flatten({"n" * 1000: 1}).cut == 1
    assert len(flatten(Endless()).values) == MAX_VALUES
    assert flatten(Endless()).cut
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = loop
    assert len(flatten(loop).values) < 20


def test_secrets_are_hidden_and_tokens_of_a_tokenizer_are_not() -> None:
    given = {
        "api_key": "s",
        "db": {"password": "s"},
        "url": "postgres://me:s@host/x",
        "max_tokens": "8",
        "pad_token": "p",
    }
    values = flatten(given).values
    assert values["api_key"] == values["db.password"] == "(hidden)"
    assert values["url"] == "postgres://(hidden)@host/x"
    assert (values["max_tokens"], values["pad_token"]) == ("8", "p")


# --- As settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [42, [1], "lr=1", Model, print, argparse])
def test_a_configuration_without_names_is_an_error_that_shows_one_with_names(given: object) -> None:
    with pytest.raises(ArgumentError, match=r"config=\{'lr': 0.001\}"):
        Settings.of({}, config=given)


@pytest.mark.parametrize(
    ("name", "given"), [("tags", [""]), ("tags", "x" * 51), ("tags", [str(n) for n in range(21)]), ("group", 3)]
)
def test_wrong_tags_and_groups_are_errors_that_say_what_is_allowed(name: str, given: object) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be a string"):
        Settings.of({}, **{name: given})


def test_environment_variables_have_the_same_effect_as_arguments() -> None:
    variables = {"HOOKCORE_CONFIG": "lr=0.1, model.width=64,fast=true", "HOOKCORE_TAGS": "a,b", "HOOKCORE_GROUP": "g"}
    told = Settings.of(variables)
    given = Settings.of({}, config={"lr": 0.1, "model": {"width": 64}, "fast": True}, tags=["a", "b", "a"], group="g")
    assert (told.config, told.tags, told.group) == (given.config, given.tags, given.group)
    assert Settings.of({"HOOKCORE_CONFIG": '{"lr": [1, 2]}'}).config.values == {"lr": "[1, 2]"}
    with pytest.raises(ArgumentError, match="HOOKCORE_CONFIG"):
        Settings.of({"HOOKCORE_CONFIG": "lr"})


def test_the_description_of_a_run_is_not_a_setting_of_its_watch() -> None:
    told = Settings.of({}, config={"lr": 1}, tags="a", group="g", notes="n").as_dict()
    assert not told.keys() & {"config", "tags", "group", "notes"}


# --- Facts -----------------------------------------------------------------------------------------------------------


def test_options_on_the_command_line_are_the_configuration_of_a_run_that_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["--lr", "0.1", "--batch-size=8", "--amp", "-v", "3", "model.width=64", "+data/x=a", "file.txt"]
    arguments += ["--betas", "0.9", "0.99", "--shift", "-2", "--seed", "1", "file.txt", "2", "--model", "small", "big"]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    run = new_run(Settings.of({}), {})
    assert run.config == {
        "lr": 0.1,
        "batch_size": 8,
        "amp": True,
        "model.width": 64,
        "data.x": "a",
        "betas": "[0.9, 0.99]",
        "shift": -2,
        "seed": 1,
        "model": "small",
    }
    assert run.facts["arguments"] == " ".join(arguments)
    assert new_run(Settings.of({}, config={"lr": 1}), {}).config == {"lr": 1}
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "--f=/run/kernel.json"])
    assert not new_run(Settings.of({}), {}).config
    assert not new_run(Settings.of({}), {}).facts


def test_arguments_are_shown_without_secrets() -> None:
    shown = facts.arguments_text(
        ["--wandb-key", "s3cret", "--token=s3cret", "--db", "x://me:s3cret@host", "--out", "a b"]
    )
    assert "s3cret" not in shown
    assert shown.endswith("--out 'a b'")


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_and_changes_to_tracked_files_are_read_from_git(tmp_path: Path) -> None:
    assert not facts.commit_of(tmp_path)
    git(tmp_path, "init")
    assert not facts.commit_of(tmp_path)  # no commit yet
    (tmp_path / "train.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    (tmp_path / "untracked").write_text("1")
    clean = facts.commit_of(tmp_path)
    assert len(str(clean["git.commit"])) == 40
    assert clean["git.dirty"] is False
    (tmp_path / "train.py").write_text("2")
    assert facts.commit_of(tmp_path) == {**clean, "git.dirty": True}
    assert not facts.commit_of(tmp_path / "gone")


def test_without_git_the_commit_is_unknown_and_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert facts.learn_commit(lambda _: None) is None
    assert not facts.commit_of(Path())


def test_models_and_optimizers_say_what_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.LazyLinear(3), nn.Linear(2, 1).to(torch.float16))
    model[0].weight.requires_grad_(False)
    found = facts_of_models([model, model[0]]).values
    assert found == {"parameters": 13, "trainable": 5, "dtype": "float32, float16", "device": "cpu"}
    assert not facts_of_models([]).values
    groups: list[dict[str, Any]] = [{"params": [model[0].weight], "lr": 0.5}, {"params": [model[0].bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    told = facts_of_optimizers([optimizer, torch.optim.SGD(model[2].parameters(), lr=torch.tensor(0.25))]).values
    assert told["optimizer"] == "AdamW"
    assert (told["optimizer.group0.lr"], told["optimizer.group1.lr"]) == (0.5, 0.1)
    assert told["optimizer.betas"] == "[0.9, 0.999]"
    assert (told["optimizer2"], told["optimizer2.lr"]) == ("SGD", 0.25)


def test_a_scheduler_that_warms_up_does_not_hide_the_learning_rate() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    torch.optim.lr_scheduler.LinearLR(optimizer, 0.01)
    assert optimizer.param_groups[0]["lr"] == 0.005
    assert facts_of_optimizers([optimizer]).values["optimizer.lr"] == 0.5


def scheduled(make: Callable[[torch.optim.Optimizer], object], *, lr: float = 0.1) -> dict[str, Any]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=lr)
    made = make(optimizer)
    found = facts_of_schedulers([optimizer])
    assert made is not None  # alive until here
    return dict(found.values)


def test_schedulers_are_found_although_optimizers_do_not_refer_to_them() -> None:
    assert not scheduled(lambda _: "none")
    cosine = scheduled(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10))
    assert cosine == {"scheduler": "CosineAnnealingLR", "scheduler.T_max": 10, "scheduler.eta_min": 0.0}
    plateau = scheduled(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=3))
    assert (plateau["scheduler"], plateau["scheduler.patience"]) == ("ReduceLROnPlateau", 3)
    assert not plateau.keys() & {"scheduler.best", "scheduler.num_bad_epochs", "scheduler.optimizer"}
    steps = scheduled(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 9]))
    assert steps == {"scheduler": "MultiStepLR", "scheduler.milestones": "[3, 9]", "scheduler.gamma": 0.1}


def test_a_composite_scheduler_is_one_scheduler_with_parts() -> None:
    def make(optimizer: torch.optim.Optimizer) -> object:
        parts: list[Any] = [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 10)]
        return lr_scheduler.SequentialLR(optimizer, parts, [5])

    found = scheduled(make)
    assert (found["scheduler"], found["scheduler.parts"]) == ("SequentialLR", "LinearLR, CosineAnnealingLR")
    assert (found["scheduler.milestones"], found["scheduler.CosineAnnealingLR.T_max"]) == ("[5]", 10)
    assert "scheduler2" not in found


def test_the_versions_of_imported_packages_are_known_without_running_lazy_modules() -> None:
    found = facts_of_packages().values
    assert found["version.numpy"] == np.__version__
    assert not found.keys() & {"version.torch", "version.json"}  # every run has torch's; json is part of Python

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> str:
            raise AssertionError(name)

    blocked: Any = None
    sys.modules |= {"lazy_one": Lazy("lazy_one"), "blocked_one": blocked}
    try:
        assert facts_of_packages().values == found
    finally:
        del sys.modules["lazy_one"], sys.modules["blocked_one"]


@pytest.mark.parametrize(
    ("variables", "facts"),
    [
        ({}, {}),
        ({"TORCHELASTIC_RUN_ID": "none"}, {"launcher": "torchrun"}),
        ({"TORCHELASTIC_RUN_ID": "mine"}, {"launcher": "torchrun", "launcher.id": "mine"}),
        ({"TORCHELASTIC_RUN_ID": "nonesuch-4"}, {"launcher": "torchrun", "launcher.id": "nonesuch-4"}),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "sweep", "SLURM_ARRAY_TASK_ID": "3", "TORCHELASTIC_RUN_ID": "x"},
            {"launcher": "torchrun", "launcher.id": "x", "job": "Slurm 7", "job.name": "sweep", "job.task": "3"},
        ),
        ({"PBS_JOBID": "9.host", "PMI_RANK": "0"}, {"launcher": "MPI", "job": "PBS 9.host"}),
    ],
)
def test_the_job_of_a_cluster_is_known_by_its_variables(variables: dict[str, str], facts: dict[str, str]) -> None:
    assert facts_of_job(variables) == facts


def test_options_of_argparse_are_found_with_defaults_among_those_of_libraries() -> None:
    def act() -> None: ...

    options = argparse.Namespace(lr=0.1, width=8, betas=[0.9, 0.99], api_key="s", action=act)
    libraries = argparse.Namespace(quiet_library=True)
    found = options_of_script(["lr"])
    assert found is not None
    assert found.values == {"lr": 0.1, "width": 8, "betas": "[0.9, 0.99]", "api_key": "(hidden)"}
    assert libraries.quiet_library
    assert options.lr


# --- End to end ------------------------------------------------------------------------------------------------------


def test_a_saved_run_has_its_configuration_and_facts(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with hookcore.watch(model, server=None, keep=tmp_path, config={"lr": 0.5, "x": Hostile()}, tags="a", notes="n"):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    (folder,) = tmp_path.iterdir()
    run = read_archive(folder).info
    assert (run.config, run.tags, run.group, run.notes) == ({"lr": 0.5, "x": "(Hostile)"}, ("a",), "", "n")
    assert (run.facts["optimizer"], run.facts["optimizer.lr"], run.facts["parameters"]) == ("SGD", 0.5, 4)
    assert (run.facts["batch.size"], run.facts["batch.shape"], run.facts["steps.trained"]) == (2, "[2, 3]", 1)


def met(*optimizers: torch.optim.Optimizer, times: int = 0) -> Any:
    """Return what a recorder knows about optimizers: these, and how many it has met so far, if more."""
    owners = SimpleNamespace(met=times or len(optimizers), optimizers=lambda: list(optimizers))
    plans, parameters = SimpleNamespace(roots=(), changes=0), SimpleNamespace(forms=0)
    return SimpleNamespace(owners=owners, plans=plans, parameters=parameters)


def test_facts_of_a_replaced_optimizer_are_dropped() -> None:
    facts, weights = Facts(), list(nn.Linear(3, 1).parameters())
    assert (facts.news(met(torch.optim.Adam(weights))) or {})["facts"]["optimizer"] == "Adam"
    replaced = torch.optim.SGD(weights, lr=0.25)
    found = (facts.news(met(replaced, times=2)) or {})["facts"]
    assert {name: value for name, value in found.items() if name.startswith("optimizer")} == facts_of_optimizers(
        [replaced]
    ).values


def test_facts_are_looked_up_again_if_the_first_lookup_failed() -> None:
    facts, optimizer = Facts(), torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.25)
    changing: Any = met(optimizer)
    changing.owners.optimizers = lambda: [None]  # like a dict that the training changes at the same time
    with pytest.raises(AttributeError):
        facts.news(changing)
    assert (facts.news(met(optimizer)) or {})["facts"]["optimizer.lr"] == 0.25


def test_facts_fit_into_a_message_and_what_is_left_out_is_counted() -> None:
    optimizers = []
    for _ in range(9):
        groups = [{"params": list(nn.Linear(1, 1).parameters()), "lr": 1 / (place + 1)} for place in range(20)]
        optimizers.append(torch.optim.SGD(groups))
    facts = Facts()
    facts.hear({f"launcher.{number}": number for number in range(MAX_IN_MESSAGE - 200)})
    assert facts.news(met(*optimizers))
    facts.hear({"steps.trained": 7})
    known = facts.news(met(*optimizers)) or {}
    assert len(known["facts"]) == MAX_IN_MESSAGE
    assert known["facts"]["steps.trained"] == 7
    said = facts_of_optimizers(optimizers)
    assert said.cut > 8 * 4  # the groups after each optimizer's 16th
    assert known["facts_cut"] > said.cut
    info = make_info("one", **known)
    assert shortened(info) == info


def test_a_run_saved_before_configurations_existed_is_read(tmp_path: Path) -> None:
    with hookcore.watch(nn.Linear(3, 1), server=None, keep=tmp_path) as watcher:
        watcher.step()
    (folder,) = tmp_path.iterdir()
    said = json.loads((folder / RUN_FILE).read_text())
    for name in ("config", "config_cut", "facts", "tags", "group", "notes"):
        del said["run"][name]
    (folder / RUN_FILE).write_text(json.dumps(said))
    run = read_archive(folder).info
    assert (run.config, run.facts, run.tags, run.group) == ({}, {}, (), "")


def test_a_trainer_sends_a_server_facts_learned_later() -> None:
    server, model = server_thread.start(port=0), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with hookcore.watch(model, server="thread", keep=None, config={"lr": 0.5}, group="g") as watcher:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        client, (run,) = watcher.client(), watcher.client().runs()
        wait_for(lambda: client.run(run.id).facts.get("optimizer") == "SGD")
        run = client.run(run.id)
    server.stop()
    assert (run.config, run.group) == ({"lr": 0.5}, "g")


def test_the_settings_of_a_run_follow_a_change_in_a_server_of_the_same_process() -> None:
    server, model = server_thread.start(port=0), nn.Linear(3, 1)
    with hookcore.watch(model, server="thread", keep=None, every=3) as watcher:
        client = watcher.client()
        (run,) = client.runs()
        client.change_settings(run.id, every=7, paused=True)
        wait_for(lambda: client.run(run.id).settings["every"] == 7 and client.run(run.id).settings["paused"])
        watcher.resume()
    settings = client.run(run.id).settings
    server.stop()
    assert (settings["every"], settings["paused"]) == (7, False)


def test_a_run_that_is_saved_without_a_server_has_the_settings_of_its_end(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    with hookcore.watch(model, server=None, keep=str(tmp_path)) as watcher:
        watcher.pause()
    (folder,) = tmp_path.iterdir()
    assert read_archive(folder).info.settings["paused"]


def test_facts_and_modules_follow_parameters_that_are_frozen_cast_and_unfrozen() -> None:
    server, model = server_thread.start(port=0), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

    with hookcore.watch(model, server="thread", keep=None, every=1, budget=None) as watcher:
        client = watcher.client()
        (run,) = client.runs()

        def known_after_a_step() -> tuple[Any, ...]:
            model(torch.ones(2, 3, dtype=model[1].weight.dtype)).sum().backward()
            watcher.step()
            facts = client.run(run.id).facts
            modules = {each.path: each.trainable for each in client.modules(run=run.id)}
            return facts.get("trainable"), facts.get("dtype"), modules.get("0")

        wait_for(lambda: known_after_a_step() == (21, "float32", 16))
        model[0].requires_grad_(False)
        wait_for(lambda: known_after_a_step() == (5, "float32", 0))
        model.double()
        wait_for(lambda: known_after_a_step() == (5, "float64", 0))
        model[0].requires_grad_(True)
        model[1].requires_grad_(False)
    last = client.run(run.id).facts["trainable"]  # of a change after the last look
    server.stop()
    assert last == 16


@pytest.fixture
def world() -> World:
    return make_world()


def test_answers_have_the_configuration_of_a_run(world: World) -> None:
    info = make_info(
        "one", config={"lr": 0.1, "on": True, "none": None}, config_cut=2, tags=("a",), facts={"device": "cpu"}
    )
    world.take(decode_batch(encode(make_batch(info, [0]))))
    (run,) = world.client.get("/api/v1/runs").json()["runs"]
    assert run["config"] == {"lr": 0.1, "on": True, "none": None}
    assert (run["config_cut"], run["tags"], run["facts"]) == (2, ["a"], {"device": "cpu"})


@pytest.mark.parametrize(
    "odd",
    [
        {"tags": ("x",) * 100},
        {"notes": "x" * 20_000},
    ],
)
def test_a_server_refuses_more_than_hookcore_sends_and_lists_such_a_saved_run_without_it(odd: dict[str, Any]) -> None:
    info: RunInfo = make_info("one", **odd)
    with pytest.raises(WireError, match="batch"):
        check(make_batch(info, [0]))
    (name,) = odd
    assert not getattr(tamed(info), name)


@pytest.mark.parametrize("name", ["config", "facts"])
def test_a_server_truncates_an_oversized_description_and_says_how_much_it_left_out(world: World, name: str) -> None:
    fine = {str(number): number for number in range(MAX_IN_MESSAGE)}
    odd = {"large": 2**60, "long": "y" * 5000, "n" * 5000: 1, "nan": float("nan")}
    info = make_info("one", **{name: odd | fine | {"more": 1}, f"{name}_cut": 3})
    assert getattr(tamed(info), name) == fine
    world.take(make_batch(info, [0]))
    run = world.client.get("/api/v1/runs/one").json()
    assert (run[name], run[f"{name}_cut"], run["newest_step"]) == (fine, 3 + 5, 0)


def test_a_configuration_that_decodes_to_too_much_is_refused_before_it_is_decoded() -> None:
    info = make_info("one", config={f"{number:05}" * 20: 0 for number in range(1400)})
    with pytest.raises(WireError, match="bytes of config"):
        decode_batch(encode(make_batch(info, [0])))
