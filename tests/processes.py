"""Processes that are forks of one process, which has imported torch, hookcore, and the server once for all tests."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tests.warm import python

ROOT: Final = Path(__file__).parents[1]
SERVER: Final = "hookcore_app.cli"


@cache
def forks() -> Any:
    """Return the context whose `Process` is a fork. Their parent is itself a fork, and so needs no imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([])  # the main module would be imported again
    context.set_executable(python())
    forkserver.ensure_running()
    context.set_executable(sys.executable)
    return context


def start(module: str, *arguments: str, environment: Mapping[str, str], log: Path) -> BaseProcess:
    """Run what `python -m module` runs, in a fork that ends with this process. Its output goes to the log.

    Only functions registered with `atexit` aren't called.
    """
    log.write_bytes(b"")
    given = (module, arguments, dict(environment), log)
    process: BaseProcess = forks().Process(target=_run, args=given, daemon=True)
    process.start()
    return process


def _run(module: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    gc.freeze()  # imported objects are never garbage
    with log.open("ab", buffering=0) as out:
        for number in (1, 2):
            os.dup2(out.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    command = import_module(module)
    sys.argv = [str(command.__file__), *arguments]
    sys.exit(command.main())


def _end_with_the_tests() -> None:
    """End this process when the tests do, even if they are killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
