"""A change runs each case of a rota in one of its ways, and nothing that is marked `all`; the summary says so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import chosen

ROOT: Path = Path(__file__).parents[2]
PROJECT = {
    "pytest.ini": "[pytest]\nmarkers =\n    all\n    rota\n",
    "conftest.py": (
        "from tests.lanes import Lanes\n"
        "def pytest_addoption(parser):\n    parser.addoption('--all', action='store_true')\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(Lanes(config))\n"
    ),
    "test_it.py": (
        "import pytest\n"
        "@pytest.mark.rota('case', of='zoo')\n@pytest.mark.parametrize('case', 'abc')\n"
        "@pytest.mark.parametrize('way', range(3))\ndef test_one(case, way): pass\n"
        "@pytest.mark.rota('case', of='zoo')\n@pytest.mark.parametrize('case', 'bcd')\ndef test_two(case): pass\n"
        "@pytest.mark.rota\n@pytest.mark.parametrize('way', range(4))\ndef test_three(way): pass\n"
        "@pytest.mark.all\ndef test_four(): pass\n"
        "def test_five(): pass\n"
    ),
}


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(("options", "ran", "left_out"), [((), 6, (11, 1)), (("--all",), 18, None)])
def test_a_case_runs_once_per_change_and_everything_with_all(
    options: tuple[str, ...], ran: int, left_out: tuple[int, int] | None, processes: int, tmp_path: Path
) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", f"-n{processes}", *options, str(tmp_path)]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"{ran} passed" in done.stdout, done.stdout + done.stderr
    said = re.search(r"Left out (\d+) tests of cases .*, and (\d+) marked `all`", done.stdout)
    assert (said and (int(said[1]), int(said[2]))) == left_out


def test_each_way_has_its_turn_as_commits_go_by() -> None:
    ways = [f"way {number}" for number in range(15)]
    turns = {change: chosen("a case", ways, change) for change in map(str, range(200))}
    assert set(turns.values()) == set(ways)
    assert turns == {change: chosen("a case", ways[::-1], change) for change in turns}
