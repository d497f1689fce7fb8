"""The settings of servers and collectors as tables: name, default, help. Flags, variables, and docs come from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from hookcore.config import AUTO, addresses_of, bytes_of
from hookcore.errors import ArgumentError

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SIZES: Final = ("memory", "keep_limit", "max_body", "spool_limit")
_FILES: Final = ("keep", "certfile", "keyfile", "rules_file", "spool")
NEVER: Final = "never"
_WORDS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
_EXPECTED: Final[dict[type, str]] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "1 or 0",
    tuple: "names separated by commas",
}


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server. Each is also a flag (`--max-runs 8`) and a variable (`HOOKCORE_MAX_RUNS=8`)."""

    host: str = _setting("127.0.0.1", "address to listen on; anything but loopback needs a token")
    port: int = _setting(8642, "port to listen on, or the next free one if it is taken; 0 for any free port")
    token: str = _setting("", "full-access token; generated and printed once if needed")
    read_token: str = _setting("", "read-only token")
    allowed_hosts: tuple[str, ...] = _setting((), "additional host names that requests to this server may use")
    frame_ancestors: tuple[str, ...] = _setting(
        (), "sites that may show the dashboard in a frame: origins such as https://hub.example, `local`, or `none`"
    )
    certfile: str = _setting("", "TLS certificate file (PEM)")
    keyfile: str = _setting("", "TLS private key file (PEM)")
    root_path: str = _setting("", "path prefix of the reverse proxy, for example /hookcore")
    memory: int = _setting(2_000_000_000, "memory limit for all runs together")
    max_runs: int = _setting(64, "maximum number of runs in the list; the oldest ended run makes room for a new one")
    idle_stop_s: float = _setting(0.0, "stop after this many seconds without trainers and browsers; 0 means never")
    lost_after_s: float = _setting(15.0, "show a run as lost after this many seconds without a message from it")
    keep: str = _setting(
        "auto", "folder for saved runs; `auto` is the user's data folder, `none` keeps runs in memory only"
    )
    keep_limit: int = _setting(10_000_000_000, "disk limit for saved runs; the oldest runs move to the trash first")
    store: str = _setting(
        "",
        "address of ClickHouse (clickhouse://...): show the runs that collectors insert there, instead of accepting "
        "runs from trainers",
    )
    retain: str = _setting(
        "", "with a store: delete runs that have sent nothing for this many days, such as 30d; by default, keep all"
    )
    max_clients: int = _setting(64, "maximum number of live streams")
    max_body: int = _setting(64 * 2**20, "maximum size of a decompressed request")
    receive_s: float = _setting(10.0, "maximum time to receive a request, in seconds")
    max_connections: int = _setting(1000, "maximum number of open connections")
    notify: tuple[str, ...] = _setting(
        (),
        "apprise addresses, such as slack://A/B/C, that get a message about each incident; they are secrets, and the "
        "variable keeps them out of process lists",
    )
    rules_file: str = _setting(
        "", "Python file with your own rules, which this server runs on all runs that it receives"
    )
    dashboard: bool = _setting(False, "run as this user's dashboard, which saves each run where its trainer asks")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def keeps(self) -> bool:
        """Whether runs are written to a folder. A starting server replaces `auto` by a folder."""
        return self.keep not in ("", AUTO)

    @classmethod
    def of(cls, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """Return settings from arguments (text or values), then HOOKCORE_ variables, then defaults."""
        if (old := environment.get("HOOKCORE_RULES", "")).endswith(".py"):
            raise ArgumentError(
                f"HOOKCORE_RULES={old!r} is a file, but HOOKCORE_RULES sets the thresholds of a training: use "
                "HOOKCORE_RULES_FILE for a server's own rules"
            )
        return cls(**_values_of(cls, given, environment))


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The settings of a collector, in addition to those it shares with a server. Each is a flag and a variable, too."""

    to: str = _setting(
        "", "address of the server that the collector sends to, or of ClickHouse (clickhouse://...); required"
    )
    to_token: str = _setting("", "token of that server")
    spool: str = _setting("", "folder of the spool; by default, one in the user's data folder")
    spool_limit: int = _setting(
        10_000_000_000, "disk limit of the spool; when it is reached, the oldest data is dropped and counted"
    )
    sync: float = _setting(
        1.0,
        "seconds of data that a power failure may cost; 0 syncs each batch, `never` leaves syncing to the system. If "
        "the collector is killed, it loses nothing in any case",
    )
    insert: float = _setting(
        5.0,
        "with ClickHouse: insert data after this many seconds, even if it is fewer than 100,000 rows. With many "
        "collectors, use more seconds, because ClickHouse prefers few large inserts",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CollectorSettings:
        """Return settings from arguments (text or values), then HOOKCORE_ variables, then defaults."""
        return cls(**_values_of(cls, given, environment))


TABLES: Final[dict[str, type[ServerSettings] | type[CollectorSettings]]] = {
    "server": ServerSettings,
    "collector": CollectorSettings,
}


def _values_of(
    table: type[ServerSettings] | type[CollectorSettings], given: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in fields(table):
        raw = given.get(each.name)
        if raw is None:
            raw = environment.get(f"HOOKCORE_{each.name.upper()}")
        if raw is not None:
            values[each.name] = _read(each.name, raw, each.default)
    return values


def _read(name: str, raw: Any, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            texts = [raw] if isinstance(raw, str) else raw
            return tuple(each for text in texts for each in _items(name, text) if each)
        if name in _SIZES and isinstance(raw, str):
            return bytes_of(raw)
        if isinstance(default, bool) and isinstance(raw, str):
            return _WORDS[raw.lower()]
        if name == "keep" and str(raw).lower() in ("", "none", AUTO):
            return AUTO if str(raw).lower() == AUTO else ""
        if name == "sync":
            return _sync_of(raw)
        return str(Path(raw).expanduser()) if name in _FILES and raw else type(default)(raw)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        detail = str(error) if name in _SIZES else ""
        raise ArgumentError(f"{name}={raw!r} is invalid: use {allowed_of(name, default)}. {detail}".strip()) from None


def _sync_of(raw: Any) -> float:
    seconds = float("inf") if str(raw).lower() == NEVER else float(raw)
    if not (0 <= seconds < 3600 or str(raw).lower() == NEVER):
        raise ValueError(raw)
    return seconds


def _items(name: str, text: str) -> list[str]:
    return addresses_of(text) if name == "notify" else text.split(",")


def default_of(setting: Field[Any]) -> str:
    """Return the default of a setting as a flag or a variable gives it; empty if there is none."""
    default: Any = setting.default
    if isinstance(default, tuple):
        return ",".join(default)
    if setting.name in _SIZES:
        return f"{default // 10**9}GB" if default % 10**9 == 0 else f"{default // 2**20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(int(default) if isinstance(default, bool) else default)


def allowed_of(name: str, default: Any) -> str:
    """Describe the allowed values of a setting."""
    if name == "sync":
        return f"seconds below 3600, or `{NEVER}`"
    if name == "notify":
        return "addresses separated by spaces"
    return "a size such as 512MB" if name in _SIZES else _EXPECTED[type(default)]
