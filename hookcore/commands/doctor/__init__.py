"""`hookcore doctor`: checks everything that hookcore needs on this machine, and says how to fix what is wrong.

It starts no lasting process and changes nothing. Here are the checks without torch, and their order; `training` runs
only if torch is installed.
"""

from __future__ import annotations

import os
import platform
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Final, Literal

import hookcore
from hookcore.config import SETTINGS, Settings, token_of
from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.process import HOST, first_port, home
from hookcore.errors import ArgumentError, HookcoreError, ServerError
from hookcore.reading.exchange import Exchange

# The doctor's findings.

Level = Literal["ok", "note", "wrong"]
_WIDTH: Final = 13


@dataclass(frozen=True, slots=True)
class Check:
    """One line. "note": a limitation. "wrong": hookcore can't work as configured."""

    level: Level
    about: str
    text: str


def as_text(findings: Sequence[Check]) -> str:
    """Format the findings, with a summary."""
    lines = [f"{finding.level:5}  {finding.about:{_WIDTH}} {finding.text}" for finding in findings]
    wrong, notes = (sum(finding.level == level for finding in findings) for level in ("wrong", "note"))
    summary = f"{wrong} wrong, {notes} to note" if wrong or notes else "no problems found"
    return "\n".join([*lines, "", summary])


# The pairs of Python and torch with which hookcore's tests were run. docs/versions.md shows the same table.


@dataclass(frozen=True, slots=True)
class Tested:
    """A pair of releases, without the patch level, and the result of its last run."""

    python: str
    torch: str
    date: str
    result: str


_QUICK: Final = (
    "the quick tests pass, a few of them at a second run, and so does the comparison of watched with unwatched "
    "trainings"
)
_IN_2_6: Final = (
    '`compiled="inside"` captures boundaries only, a watched compiled model may get more graphs, and the inventory '
    "does not list pairs of saved-tensors hooks"
)
TESTED: Final = (
    Tested("3.11", "2.13", "2026-11-27", "the full test suite passes"),
    Tested(
        "3.11",
        "2.6",
        "2026-11-22",
        "the tests of eager training pass; " + _IN_2_6,
    ),
    Tested(
        "3.10",
        "2.6",
        "2026-11-27",
        "7,879 quick tests and the comparison of watched with unwatched trainings pass; " + _IN_2_6,
    ),
    Tested("3.10", "2.8", "2026-11-22", _QUICK + '; `compiled="inside"` captures boundaries only'),
    Tested("3.12", "2.10", "2026-11-22", _QUICK + '; `compiled="inside"` captures boundaries only'),
    Tested("3.13", "2.13", "2026-11-22", _QUICK),
    Tested(
        "3.14",
        "2.15",
        "2026-11-22",
        "the comparison of watched with unwatched trainings and 5,501 quick tests pass; one of mlflow and one of "
        "TorchScript fail at deprecations; one of a message in the docs failed and was not run again; those that need "
        "Node or a browser were not run",
    ),
)


def examine_tested() -> Check:
    """Say whether the tests were run with the installed pair."""
    try:
        torch = _minor(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Check("ok", "tested", "torch is not installed, so nothing can be trained here")
    python = _minor(platform.python_version())
    pair = f"Python {python} with torch {torch}"
    for each in TESTED:
        if (each.python, each.torch) == (python, torch):
            return Check("ok" if each is TESTED[0] else "note", "tested", f"{pair}, {each.date}: {each.result}")
    others = ", ".join(f"Python {each.python} with torch {each.torch}" for each in TESTED)
    words = f"the tests were not run with {pair}, only with {others}; `make matrix` in a checkout runs them"
    return Check("note", "tested", words)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


ASK_S: Final = 5.0
_TOGETHER: Final = ("torch", "numpy", "lightning", "transformers", "accelerate", "scikit-learn")


def examine_machine(environment: Mapping[str, str]) -> list[Check]:
    """Run each check; a check that fails is reported and doesn't stop the others."""
    return [_versions(), examine_tested(), *(_finding_of(about, look, environment) for about, look in _LOOKS)]


def _finding_of(about: str, look: Callable[[Mapping[str, str]], Check], environment: Mapping[str, str]) -> Check:
    try:
        return look(environment)
    except HookcoreError as error:
        return Check("wrong", about, str(error))


def _versions() -> Check:
    found = {}
    for name in _TOGETHER:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Check("ok", "versions", f"hookcore {hookcore.__version__}, {system}, {named}")


def _settings(environment: Mapping[str, str]) -> Check:
    Settings.of(environment)
    names = {setting.variable for setting in SETTINGS} | {"HOOKCORE_URL"}
    given = [f"{name}={environment[name]}" for name in sorted(names) if environment.get(name, "").strip()]
    return Check("ok", "settings", ", ".join(given) or "defaults; no variables are set")


def _folder(environment: Mapping[str, str]) -> Check:
    folder = home(environment)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        words = f"{folder} (mode {mode:04o}) is not writable: make it writable, or set HOOKCORE_HOME to another folder"
        return Check("wrong", "folder", words)
    loose = [each.name for each in folder.iterdir() if each.is_file() and stat.S_IMODE(each.stat().st_mode) & 0o077]
    if loose:
        words = f"{folder} contains files that others can read: {', '.join(sorted(loose))}; run `chmod 600` on them"
        return Check("wrong", "folder", words)
    return Check("ok", "folder", f"{folder} is private (mode {mode:04o}) and writable")


def _dashboard(environment: Mapping[str, str]) -> Check:
    found = dashboard.status(environment)
    if not found.running:
        return _port(environment)
    if not found.url:
        words = f"running, but {found.folder / 'dashboard.json'} has no address: stop the process that holds its lock"
        return Check("wrong", "dashboard", words)
    problem = _problem_of(found.url)
    if problem:
        words = f"process {found.pid} at {found.url} {problem}; log file: {found.log}; to stop it, run `hookcore stop`"
        return Check("wrong", "dashboard", words)
    return Check("ok", "dashboard", f"running at {found.url}/ (process {found.pid}), and it answers")


def _port(environment: Mapping[str, str]) -> Check:
    port = first_port(environment)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            words = f"not running; port {port} is taken ({error.strerror}), so it would start at the next free port"
            return Check("note", "dashboard", words)
    return Check("ok", "dashboard", f"not running; port {port} is free")


def _server(environment: Mapping[str, str]) -> Check:
    server = Settings.of(environment).server
    token = token_of(environment)
    said = "HOOKCORE_TOKEN is set" if token else "HOOKCORE_TOKEN is not set"
    if server is None or "://" not in server:
        return Check("ok", "token", f"{said}; this machine's dashboard generates its own")
    problem = _problem_of(server, token)
    if problem:
        return Check("wrong", "server", f"{server} {problem}; {said}")
    return Check("ok", "server", f"{server} answers; {said}")


_LOOKS: Final = (("settings", _settings), ("folder", _folder), ("dashboard", _dashboard), ("server", _server))


def _problem_of(url: str, token: str = "") -> str:
    """Return the reason why a server can't be used, or an empty string."""
    try:
        exchange = Exchange(url, token or None, ASK_S)
        exchange.send("GET", "/api/v1/runs" if token else "/healthz")
        exchange.close()
    except ArgumentError as error:
        return f"can't be reached: {error}"
    except ServerError as error:
        if error.status is None:
            return f"doesn't answer: {error}"
        if error.status in (401, 403):
            return f"rejects the token: {error}"
        return f"answered {error.status}: is this a hookcore server?"
    return ""


def examine(model: str = "", environment: Mapping[str, str] = os.environ) -> list[Check]:
    """Run all checks; `model` names a callable as `module:callable` whose model is checked too."""
    findings = examine_machine(environment)
    try:
        training = import_module("hookcore.commands.doctor.training")
    except (ImportError, OSError) as error:
        words = f"cannot be imported ({error}): this machine can serve and show runs, but not train"
        return [*findings, Check("wrong" if model else "note", "torch", words)]
    findings += training.examine()
    return findings + training.examine_model(model) if model else findings
