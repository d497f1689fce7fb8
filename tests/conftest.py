"""The environment of every test. The fixtures around every test are in tests/around.py, because they need torch."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
import threading
from importlib import import_module

import pytest

from tests.lanes import Lanes

# No test starts a dashboard, or uses the user's own, unless it asks for that. Child processes inherit this.
for _name in [name for name in os.environ if name.startswith("HOOKCORE_")]:
    del os.environ[_name]
os.environ["HOOKCORE_SERVER"] = "none"
os.environ["HOOKCORE_EXPLAIN"] = "never"  # a test that wants a replay by itself says so
os.environ["HOOKCORE_HOME"] = tempfile.mkdtemp(prefix="hookcore-tests-")
atexit.register(shutil.rmtree, os.environ["HOOKCORE_HOME"], ignore_errors=True)

# If a shell runs the tests in the background, they ignore Ctrl+C, and all processes that they start would, too.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest.register_assert_rewrite("tests.around")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests, all cases in all ways; see tests/lanes.py")


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures around every test, but not in a process that only hands out tests: torch takes seconds."""
    config.pluginmanager.register(Lanes(config))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        gc.disable()  # imports leave no garbage, but looking for it takes a third of the time; see tests/around.py
        config.pluginmanager.register(import_module("tests.around"))
