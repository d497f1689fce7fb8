"""The command line: its help, its table of settings, its flags, and its imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookcore
from hookcore.config import KNOWN_VARIABLES, SETTINGS
from hookcore.errors import ArgumentError
from hookcore_app import cli
from hookcore_app.cli import flags, servers
from tests import settings_tables

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "demo",
    "run",
    "serve",
    "open",
    "status",
    "stop",
    "link",
    "logout",
    "notify-test",
    "report",
    "check",
    "collect",
    "replay",
    "doctor",
    "coordcheck",
    "lr-sweep",
    "runs",
    "why",
    "layers",
    "compare",
    "precision",
    "resume-check",
    "wait",
    "mcp",
    "skills",
    "look",
    "import",
)
# Passed between hookcore's own processes; not for users.
INTERNAL = {"HOOKCORE_LISTEN_FD", "HOOKCORE_LOCK_FD", "HOOKCORE_RUN_PYTHONPATH", "HOOKCORE_RUN_UNTIL"}


def test_the_help_names_every_command_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert set(re.findall(r"^    ([a-z-]+)(?: |$)", told, re.MULTILINE)) == set(COMMANDS)
    assert "examples:" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_ends_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2]
    assert f"hookcore {command}" in examples


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_example_of_the_help_is_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*([command] if command else []), "--help"])
    examples = capsys.readouterr().out.partition("examples:\n")[2]
    found = re.findall(r"^ .*?\bhookcore ((?:[a-z-]+)(?: \S+)*)", examples, re.MULTILINE)
    assert found
    parser = cli.make_parser()
    for words in found:
        given = words.split("   ")[0].split()
        assert parser.parse_args(given).run, given


def test_no_command_imports_torch_before_it_needs_it() -> None:
    code = """
import sys
from contextlib import suppress
from hookcore_app.cli import main
for arguments in (["--help"], *([each, "--help"] for each in ("run", "demo", "doctor", "look", "import")), ["status"]):
    with suppress(SystemExit):
        main(arguments)
    if found := {"torch", "numba"} & set(sys.modules):
        sys.exit(f"{arguments} imports {found}")
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version_matches_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"hookcore {hookcore.__version__}\n"


@pytest.mark.parametrize("command", ["run", "demo"])
def test_every_setting_of_watch_has_a_flag_with_the_meaning_of_its_variable(command: str) -> None:
    parser = cli.make_parser()
    rest = ["train.py"] if command == "run" else []
    given = parser.parse_args([command, "--every", "3", "--kinds", "output,param", "--server", "none", *rest])
    assert flags.watch_variables(given, {}) == {
        "HOOKCORE_EVERY": "3",
        "HOOKCORE_KINDS": "output,param",
        "HOOKCORE_SERVER": "none",
    }
    assert {f"watch_{each.name}" for each in SETTINGS} <= set(vars(given))


@pytest.mark.parametrize("command", ["run", "demo"])
def test_the_help_says_what_each_setting_means_and_its_default_as_a_flag(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "The share of a step's time that watching may cost" in told
    assert "default: output,output_grad,param_grad)" in told
    assert "A pattern (docs/patterns.md) is a path or a glob" in told
    assert "None" not in told
    assert "](" not in told


def test_the_help_of_a_collector_shows_its_own_port_and_sizes_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["collect", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"HOOKCORE_PORT; default: {servers.COLLECTOR_PORT})" in told
    assert "default: 10GB)" in told


def test_an_invalid_flag_of_watch_is_refused_before_anything_starts() -> None:
    given = cli.make_parser().parse_args(["run", "--budget", "5%", "train.py"])
    with pytest.raises(ArgumentError, match="HOOKCORE_BUDGET='5%' is invalid"):
        flags.watch_variables(given, {})


def test_the_table_in_the_documentation_equals_the_code() -> None:
    told = settings_tables.settings_table()
    assert told in (ROOT / "docs" / "settings.md").read_text(), "run `python -m tests.settings_tables settings`"
    others = [page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if "| allowed |" in page.read_text()]
    assert [page.name for page in others] == ["settings.md"]
    assert {line.count(" | ") for line in told.splitlines()} == {len(settings_tables.SETTINGS_HEAD) - 1}


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    files = [*(ROOT / "hookcore").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
    named = {name for file in files for name in re.findall(r"\bHOOKCORE_[A-Z_]+[A-Z]\b", file.read_text())}
    assert named - INTERNAL <= set(re.findall(r"`(HOOKCORE_[A-Z_]+)`", settings_tables.settings_table()))


def test_every_known_variable_is_one_that_the_code_reads() -> None:
    listed = set(re.findall(r"`(HOOKCORE_[A-Z_]+)`", settings_tables.settings_table()))
    assert listed | INTERNAL == KNOWN_VARIABLES


def test_an_unknown_variable_is_reported_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOKCORE_EVRY", "10")
    told = "hookcore: the variable HOOKCORE_EVRY is unknown and has no effect. Did you mean 'HOOKCORE_EVERY'?"
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().err.strip() == told
    for _ in range(2):
        hookcore.watch().close()
    assert [record.getMessage() for record in caplog.records] == [told]


def test_an_unknown_command_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["runn", "train.py"])
    assert ended.value.code == 2
    assert "'runn' is not a command. Did you mean 'run'? The commands are demo, run, " in capsys.readouterr().err


def test_python_runs_the_package_as_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "hookcore", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"hookcore {hookcore.__version__}"


def test_a_closed_pipe_causes_no_traceback() -> None:
    command = [sys.executable, "-m", "hookcore_app.cli", "status"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        said = started.stderr.read()
    assert (started.returncode, said) == (141, "")
