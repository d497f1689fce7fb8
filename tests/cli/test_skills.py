"""`hookcore skills install`: the skill for coding agents, where the user says, and correct about the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hookcore_app import cli
from hookcore_app.cli import main
from hookcore_app.cli.servers import SKILL_FOLDERS, SKILLS


def test_a_skill_is_installed_for_an_agent_in_the_project_or_the_home_folder_or_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for agent, folder in SKILL_FOLDERS.items():
        assert main(["skills", "install", "--for", agent]) == 0
        assert capsys.readouterr().out == f"installed {folder}/hookcore/SKILL.md\n"
        assert (tmp_path / folder / "hookcore" / "SKILL.md").read_text() == (SKILLS / "hookcore/SKILL.md").read_text()
    assert main(["skills", "install", "--for", "claude", "--home"]) == 0
    assert (tmp_path / "home/.claude/skills/hookcore/SKILL.md").exists()
    assert main(["skills", "install", "--to", "mine"]) == 0
    assert (tmp_path / "mine/hookcore/SKILL.md").exists()
    with pytest.raises(SystemExit):
        main(["skills", "install"])
    assert "one of the arguments --for --to is required" in capsys.readouterr().err


def test_a_skill_that_the_user_changed_is_overwritten_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["skills", "install", "--to", str(tmp_path)]
    assert main(given) == main(given) == 0
    path = tmp_path / "hookcore" / "SKILL.md"
    path.write_text("my own")
    assert main(given) == 2
    assert "use --force to overwrite it" in capsys.readouterr().err
    assert path.read_text() == "my own"
    assert main([*given, "--force"]) == 0
    assert path.read_text() != "my own"


@pytest.mark.parametrize("path", sorted(SKILLS.glob("*/SKILL.md")), ids=lambda path: path.parent.name)
def test_a_skill_has_the_head_that_agents_read_and_names_commands_that_exist(path: Path) -> None:
    text = path.read_text()
    head = re.match(r"---\nname: ([a-z-]{1,64})\ndescription: (.{1,1024})\n---\n", text)
    assert head is not None
    assert head[1] == path.parent.name
    parser = cli.make_parser()
    commands = re.findall(r"`hookcore ([a-z][^`]*)`", text)
    assert len(commands) > 8
    for words in commands:
        assert parser.parse_args(shlex.split(words)).run
