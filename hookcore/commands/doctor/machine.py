"""Checks without torch: versions, settings, private folder, dashboard and port, server and token."""

from __future__ import annotations

import os
import platform
import socket
import stat
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Final

import hookcore
from hookcore.commands.doctor import tested
from hookcore.commands.doctor.findings import Finding
from hookcore.config import SETTINGS, Settings, token_of
from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.home import home
from hookcore.delivery.dashboard.launch import HOST, first_port
from hookcore.errors import ArgumentError, HookcoreError, ServerError
from hookcore.reading.exchange import Exchange

ASK_S: Final = 5.0
_TOGETHER: Final = ("torch", "numpy", "lightning", "transformers", "accelerate", "scikit-learn")


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """Run each check; a check that fails is reported and doesn't stop the others."""
    return [_versions(), tested.examine(), *(_finding_of(about, look, environment) for about, look in _LOOKS)]


def _finding_of(about: str, look: Callable[[Mapping[str, str]], Finding], environment: Mapping[str, str]) -> Finding:
    try:
        return look(environment)
    except HookcoreError as error:
        return Finding("wrong", about, str(error))


def _versions() -> Finding:
    found = {}
    for name in _TOGETHER:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Finding("ok", "versions", f"hookcore {hookcore.__version__}, {system}, {named}")


def _settings(environment: Mapping[str, str]) -> Finding:
    Settings.of(environment)
    names = {each.variable for each in SETTINGS} | {"HOOKCORE_URL"}
    given = [f"{name}={environment[name]}" for name in sorted(names) if environment.get(name, "").strip()]
    return Finding("ok", "settings", ", ".join(given) or "defaults; no variables are set")


def _folder(environment: Mapping[str, str]) -> Finding:
    folder = home(environment)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        words = f"{folder} (mode {mode:04o}) is not writable: make it writable, or set HOOKCORE_HOME to another folder"
        return Finding("wrong", "folder", words)
    loose = [each.name for each in folder.iterdir() if each.is_file() and stat.S_IMODE(each.stat().st_mode) & 0o077]
    if loose:
        words = f"{folder} contains files that others can read: {', '.join(sorted(loose))}; run `chmod 600` on them"
        return Finding("wrong", "folder", words)
    return Finding("ok", "folder", f"{folder} is private (mode {mode:04o}) and writable")


def _dashboard(environment: Mapping[str, str]) -> Finding:
    found = dashboard.status(environment)
    if not found.running:
        return _port(environment)
    if not found.url:
        words = f"running, but {found.folder / 'dashboard.json'} has no address: stop the process that holds its lock"
        return Finding("wrong", "dashboard", words)
    problem = _problem_of(found.url)
    if problem:
        words = f"process {found.pid} at {found.url} {problem}; log file: {found.log}; to stop it, run `hookcore stop`"
        return Finding("wrong", "dashboard", words)
    return Finding("ok", "dashboard", f"running at {found.url}/ (process {found.pid}), and it answers")


def _port(environment: Mapping[str, str]) -> Finding:
    port = first_port(environment)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            words = f"not running; port {port} is taken ({error.strerror}), so it would start at the next free port"
            return Finding("note", "dashboard", words)
    return Finding("ok", "dashboard", f"not running; port {port} is free")


def _server(environment: Mapping[str, str]) -> Finding:
    server = Settings.of(environment).server
    token = token_of(environment)
    said = "HOOKCORE_TOKEN is set" if token else "HOOKCORE_TOKEN is not set"
    if server is None or "://" not in server:
        return Finding("ok", "token", f"{said}; this machine's dashboard generates its own")
    problem = _problem_of(server, token)
    if problem:
        return Finding("wrong", "server", f"{server} {problem}; {said}")
    return Finding("ok", "server", f"{server} answers; {said}")


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
