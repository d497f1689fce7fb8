"""`hookcore doctor` finds problems and says how to solve them."""

from __future__ import annotations

import platform
import re
import socket
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from hookcore.commands.doctor import TESTED, Check, as_text, examine, examine_machine, examine_tested, training
from hookcore.errors import ArgumentError
from hookcore_app import cli
from tests.manual import ROOT
from tests.ports import free_port
from tests.serving import TOKEN, served


def levels(environment: dict[str, str]) -> dict[str, Check]:
    return {each.about: each for each in examine_machine(environment)}


@pytest.fixture
def well(tmp_path: Path) -> dict[str, str]:
    """Return an environment without problems."""
    return {"HOOKCORE_HOME": str(tmp_path / "home"), "HOOKCORE_PORT": str(free_port())}


def test_a_healthy_installation_has_no_problems(well: dict[str, str]) -> None:
    findings = [each for each in examine_machine(well) if each.about != "tested"]
    assert {each.level for each in findings} == {"ok"}
    assert as_text(findings).endswith("no problems found")
    assert f"port {well['HOOKCORE_PORT']} is free" in as_text(findings)


def test_the_table_of_tested_pairs_matches_the_page_on_versions() -> None:
    lines = (ROOT / "docs/versions.md").read_text().splitlines()
    rows = [f"| {each.python} | {each.torch} | {each.date} | {each.result} |" for each in TESTED]
    first = lines.index(rows[0])
    assert lines[first : first + len(rows) + 1] == [*rows, ""]


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [("2.13.5+cpu", "ok", "full test suite"), ("2.6.0", "note", "eager"), ("2.99.0", "note", "not run with Python")],
)
def test_doctor_says_whether_the_installed_pair_was_tested(
    monkeypatch: pytest.MonkeyPatch, version: str, level: str, words: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: version)
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.7")
    found = examine_tested()
    assert (found.level, words in found.text) == (level, True)


def test_doctor_names_the_settings_that_variables_set(well: dict[str, str]) -> None:
    assert "HOOKCORE_EVERY=10" in levels(well | {"HOOKCORE_EVERY": "10"})["settings"].text
    wrong = levels(well | {"HOOKCORE_EVERY": "often"})["settings"]
    assert wrong.level == "wrong"
    assert "HOOKCORE_EVERY='often' is invalid" in wrong.text


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HOOKCORE_INCLUDE", "layers.*"), ("HOOKCORE_KINDS", "param_grad"), ("HOOKCORE_PHASES", "eval")],
)
def test_the_check_of_the_kernel_ignores_the_settings_of_trainings(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert training.examine_kernel().level != "wrong"


def test_doctor_writes_no_files_where_a_training_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOOKCORE_KEEP", str(tmp_path / "runs"))
    monkeypatch.setenv("HOOKCORE_BRIDGE", f"tensorboard:{tmp_path / 'board'}")
    training.examine_kernel()
    training.examine_model("torch.nn:Identity")
    assert list(tmp_path.iterdir()) == []


def test_doctor_never_shows_a_token(well: dict[str, str]) -> None:
    told = as_text(examine_machine(well | {"HOOKCORE_TOKEN": TOKEN}))
    assert TOKEN not in told
    assert "HOOKCORE_TOKEN is set" in told


def test_an_unusable_folder_is_a_problem(well: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = levels(well | {"HOOKCORE_HOME": str(tmp_path / "file" / "home")})
    assert found["folder"].level == found["dashboard"].level == "wrong"
    assert "HOOKCORE_HOME" in found["folder"].text


def test_a_private_file_that_others_can_read_is_a_problem(well: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "dashboard.json").touch()
    (home / "dashboard.json").chmod(0o644)
    found = levels(well)["folder"]
    assert found.level == "wrong"
    assert "dashboard.json" in found.text


def test_a_port_in_use_is_reported(well: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(well["HOOKCORE_PORT"])))
        other.listen()
        found = levels(well)["dashboard"]
    assert found.level == "note"
    assert "next free port" in found.text


def test_doctor_asks_a_server_whether_it_accepts_the_token(well: dict[str, str]) -> None:
    with served() as server:
        told = well | {"HOOKCORE_URL": server.url}
        assert levels(told | {"HOOKCORE_TOKEN": TOKEN})["server"].level == "ok"
        wrong = levels(told | {"HOOKCORE_TOKEN": "x" * 40})["server"]
    assert wrong.level == "wrong"
    assert "rejects the token" in wrong.text
    gone = levels(told)["server"]
    assert gone.level == "wrong"
    assert "doesn't answer" in gone.text


def test_doctor_works_without_torch_and_says_what_is_missing(
    well: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hookcore.commands.doctor.training", None)
    (found,) = (each for each in examine("", well) if each.about == "torch")
    assert found.level == "note"
    assert "but not train" in found.text


MODELS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.around, self.unused = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(1, 1)

    def forward(self, points):
        return self.around.forward(self.used(points))

def make():
    return Model()

def make_with_inputs():
    return Model(), torch.ones(3, 2)

def make_with_wrong_inputs():
    return Model(), torch.ones(3, 5)

def make_a_number():
    return 3

MADE = []

def make_to_train():
    MADE.append(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    for weight in MADE[-1].parameters():
        nn.init.constant_(weight, 0.01)
    return MADE[-1], torch.ones(3, 2)

def make_frozen():
    return nn.Linear(2, 1).requires_grad_(False), torch.ones(3, 2)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_of_a_user.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_a_user", raising=False)


@pytest.mark.usefixtures("models")
def test_a_check_of_a_model_with_inputs_lists_captured_modules_and_reasons_for_the_rest() -> None:
    told = as_text(training.examine_model("models_of_a_user:make_with_inputs"))
    assert "2 of 4 modules were captured in one step" in told
    assert "unused: not called in any captured step (direct calls to .forward() bypass hooks)" in told


@pytest.mark.usefixtures("models")
def test_a_check_of_a_model_without_inputs_lists_the_selected_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_EXCLUDE", "unused")
    told = as_text(training.examine_model("models_of_a_user:make"))
    assert "3 of 4 modules would be captured" in told
    assert "unused: excluded by" in told
    assert "not run; to see more" in told


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_the_cost_of_a_model_is_a_table_of_all_parts_and_leaves_the_model_as_it_was() -> None:
    told = training.measure_cost("models_of_a_user:make_to_train", seconds=0.0)
    rows = {line[:48].strip(): line[48:].split() for line in told.splitlines()[3:-2]}
    assert list(rows) == [words for words, *_ in training.COST_PARTS]
    assert all(len(cells) == 5 and cells[-1].endswith("%") for cells in rows.values())  # median, [low to high], share
    assert "SGD of 4 tensors" in told
    total = re.search(
        r"A captured step takes ([\d.]+)% more processor time \(lines 1 to 4, and 6\), "
        r"any other step ([\d.]+)% \(1, 2, and 5\)\. With budget=0\.05",
        told,
    )
    shares = [float(cells[-1].rstrip("%")) for cells in rows.values()]
    sums = [sum(shares[line - 1] for line in lines) for lines in ((1, 2, 3, 4, 6), (1, 2, 5))]
    assert total is not None
    assert [float(each) for each in total.groups()] == pytest.approx([max(0.0, each) for each in sums])
    model = sys.modules["models_of_a_user"].MADE[-1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(weight, torch.full_like(weight, 0.01)) for weight in model.parameters())


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("name", "words"), [("make", "returned no inputs"), ("make_frozen", "without weights that train")]
)
def test_the_cost_of_a_model_that_cannot_be_trained_is_an_error_that_says_what_is_missing(
    name: str, words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        training.measure_cost(f"models_of_a_user:{name}")


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("models_of_a_user", "give a module and a callable in it"),
        ("models_of_a_user:mke", "has no attribute 'mke'"),
        ("modles:make", "No module named 'modles'"),
        ("models_of_a_user:make_a_number", "returned a int"),
        ("models_of_a_user:make_with_wrong_inputs", "failed on its inputs"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_an_error_with_its_reason(name: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        training.examine_model(name)


@pytest.mark.slow
def test_doctor_tries_the_features_of_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {each.about: each for each in training.examine()}
    assert found["kernel"].level == found["torch.compile"].level == "ok"
    monkeypatch.setattr(training, "_compiler", lambda: Check("wrong", "torch.compile", "is ill"))
    assert cli.main(["doctor"]) == 1
    assert "wrong  torch.compile is ill" in capsys.readouterr().out
