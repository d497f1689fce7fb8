"""What the server can be told, in one table: name, default, help. Flags, variables and the docs come from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from hookcore.config import AUTO, bytes_of
from hookcore.errors import ArgumentError

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SIZES: Final = ("memory", "keep_limit", "max_body")
_WORDS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
_EXPECTED: Final[dict[type, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "1 or 0",
    tuple: "names, with commas between them",
}


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server. Each can be given as a flag (`--max-runs 8`) or a variable (`HOOKCORE_MAX_RUNS=8`)."""

    host: str = _setting("127.0.0.1", "the address to listen on; any but this machine's own needs a token")
    port: int = _setting(8642, "the port to listen on; the next free one where it is taken, 0 for any")
    token: str = _setting("", "who shows it may read and change everything; made and printed once if needed")
    read_token: str = _setting("", "who shows it may read, and change nothing")
    allowed_hosts: tuple[str, ...] = _setting((), "further names under which the server may be asked for")
    frame_ancestors: tuple[str, ...] = _setting(
        (), "whose pages may show ours in a frame: origins such as https://hub.example, `local` or `none`"
    )
    certfile: str = _setting("", "a certificate for TLS, in PEM")
    keyfile: str = _setting("", "the certificate's key, in PEM")
    root_path: str = _setting("", "the path before which a reverse proxy stands, such as /hookcore")
    memory: int = _setting(2_000_000_000, "bytes that all runs together may take")
    max_runs: int = _setting(64, "runs shown at once; the oldest that ended makes room")
    idle_stop_s: float = _setting(0.0, "stop by itself after so many seconds without trainer and browser; 0 never")
    lost_after_s: float = _setting(15.0, "a run that gave no sign of life for so long is shown as lost")
    keep: str = _setting(
        "auto",
        "the folder in which runs are kept on disk; `auto` is the user's data folder, `none` keeps runs in memory only",
    )
    keep_limit: int = _setting(
        10_000_000_000, "bytes that kept runs may take on disk; the oldest go first, by way of a trash"
    )
    max_clients: int = _setting(64, "live streams at once")
    max_body: int = _setting(64 * 2**20, "bytes of a request, decompressed")
    receive_s: float = _setting(10.0, "seconds a request may take to arrive")
    max_connections: int = _setting(1000, "open connections at once")
    dashboard: bool = _setting(False, "be this user's own dashboard: keep runs where their trainers say")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def keeps(self) -> bool:
        """Whether runs are written to a folder. `auto` is turned into one when a server starts."""
        return self.keep not in ("", AUTO)

    @classmethod
    def of(cls, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """Settings from what was given (text or values), else from HOOKCORE_ variables, else the defaults."""
        values: dict[str, Any] = {}
        for each in fields(cls):
            raw = given.get(each.name)
            if raw is None:
                raw = environment.get(f"HOOKCORE_{each.name.upper()}")
            if raw is not None:
                values[each.name] = _read(each.name, raw, each.default)
        return cls(**values)


def _read(name: str, raw: Any, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            return tuple(filter(None, raw.split(","))) if isinstance(raw, str) else tuple(raw)
        if name in _SIZES and isinstance(raw, str):
            return bytes_of(raw)
        if isinstance(default, bool) and isinstance(raw, str):
            return _WORDS[raw.lower()]
        if name == "keep" and str(raw).lower() in ("", "none", AUTO):
            return AUTO if str(raw).lower() == AUTO else ""
        return str(Path(raw).expanduser()) if name in ("keep", "certfile", "keyfile") and raw else type(default)(raw)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        detail = str(error) if name in _SIZES else ""
        raise ArgumentError(
            f"{name}={raw!r} is not allowed: give {_expected(name, default)}. {detail}".strip()
        ) from None


def allowed_of(name: str) -> str:
    """What a setting may be, in words."""
    (default,) = (each.default for each in fields(ServerSettings) if each.name == name)
    return _expected(name, default)


def _expected(name: str, default: Any) -> str:
    return "a size such as 512MB" if name in _SIZES else _EXPECTED[type(default)]
