"""A real server as a process, and the trainings that send to it."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.processes import SERVER, start
from tests.waiting import wait_for

PATIENCE_S = 90.0
TRAINER = "tests.browser.trainer"


@dataclass
class Site:
    """A server, its trainers, and their logs."""

    folder: Path
    port: int = 0
    server: BaseProcess | None = None
    trainers: list[BaseProcess] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def resting(self) -> Path:
        """The file that slows a training down, if it was started with `--rest`."""
        return self.folder / "resting"

    def start(self) -> None:
        """Start the server, at its previous port if it had one."""
        log = self.folder / "server.log"
        self.server = start(SERVER, "serve", "--port", str(self.port), environment=self.environment(), log=log)
        found = wait_for(
            lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text()), "the server tells its address"
        )
        self.port = int(found[1])

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.join()

    def train(self, name: str, *arguments: str) -> BaseProcess:
        """Start a training with that name and the arguments of `tests.browser.trainer`."""
        log = self.folder / f"{name}.log"
        trainer = start(TRAINER, self.url, "--name", name, *arguments, environment=self.environment(), log=log)
        self.trainers.append(trainer)
        return trainer

    def get(self, path: str) -> Any:
        """Return an answer of the API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def run(self, name: str, steps: int = 1, state: str = "") -> dict[str, Any]:
        """Wait until a training has made this many steps (and has that state), and return its run."""

        def look() -> Any:
            for run in self.get("runs")["runs"]:
                if run["name"] == name and (run["newest_step"] or -1) >= steps - 1 and state in ("", run["state"]):
                    return run
            return None

        found: dict[str, Any] = wait_for(look, f"run {name} with {steps} steps; see {self.folder}/{name}.log")
        return found

    def remove(self, run: str) -> None:
        """Remove a run from the server, so that the shared site stays unchanged."""
        address = f"{self.url}/api/v1/runs/{run}"
        request = urllib.request.Request(address, method="DELETE", headers={"Origin": self.url})
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def stop(self) -> None:
        """End all processes."""
        for process in [*self.trainers, *([self.server] if self.server else [])]:
            process.kill()
            process.join()

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes."""
        return {**os.environ, "OMP_NUM_THREADS": "1", "HOOKCORE_HOME": str(self.folder)}


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Return an empty site."""
    site = Site(folder)
    try:
        site.start()
        yield site
    finally:
        site.stop()
