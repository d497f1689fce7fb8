"""What comes before every test: the environment. What is around every test needs torch: tests/around.py."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import threading
from importlib import import_module

import pytest

# No test starts a dashboard or touches the user's own unless it asks for that. Child processes inherit this.
for _name in [name for name in os.environ if name.startswith("HOOKCORE_")]:
    del os.environ[_name]
os.environ["HOOKCORE_SERVER"] = "none"
os.environ["HOOKCORE_HOME"] = tempfile.mkdtemp(prefix="hookcore-tests-")
atexit.register(shutil.rmtree, os.environ["HOOKCORE_HOME"], ignore_errors=True)

# Background processes of a shell ignore Ctrl+C, and so would all processes that tests start.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest.register_assert_rewrite("tests.around")


def pytest_configure(config: pytest.Config) -> None:
    """Import what is around every test, but not where others run them: importing torch takes seconds."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(import_module("tests.around"))
