"""The settings of servers and collectors, in tables like that of a training. Flags and docs come from them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hookcore.config import AUTO, Setting, addresses_of
from hookcore.config.readers import items_of, read_integer, read_notify, read_number, read_size, setting, settings_in
from hookcore.errors import ArgumentError

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
NEVER: Final = "never"
HELP_LINK: Final = re.compile(r"\[([^]]*)\]\(([^)#]*)[^)]*\)")  # as in docs/settings.md: words and file
_WORDS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def _read_switch(given: object) -> bool:
    if (word := str(given).lower()) not in _WORDS:
        raise ValueError
    return _WORDS[word]


def _read_keep(given: object) -> str:
    word = str(given).lower()
    return AUTO if word == AUTO else "" if word in ("", "none") else os.path.expanduser(str(given))


def _read_sync(given: object) -> float:
    return math.inf if str(given).lower() == NEVER else read_number(0, 3600)(given)


def _setting(
    allowed: str,
    read: Callable[[Any], object],
    from_text: Callable[[str], object],
    default: object,
    text: str,
    secret: bool = False,
) -> Any:
    return setting(default, allowed, text, read, from_text, secret=secret, filled=True)


_text: Final = partial(_setting, "a string", str, str)
_file: Final = partial(_setting, "a string", os.path.expanduser, str)
_keep: Final = partial(_setting, "a string", _read_keep, str)
_integer: Final = partial(_setting, "an integer of 0 or more", read_integer(0), int)
_number: Final = partial(_setting, "a number of 0 or more", read_number(0), float)
_switch: Final = partial(_setting, "1 or 0", _read_switch, str)
_size: Final = partial(_setting, "a size such as 512MB", read_size, str)
_names: Final = partial(_setting, "names separated by commas", tuple, items_of)
_addresses: Final = partial(_setting, "addresses separated by spaces", read_notify, addresses_of)
_sync: Final = partial(_setting, f"seconds up to 3600, or `{NEVER}`", _read_sync, float)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server. Each is also a flag (`--max-runs 8`) and a variable (`HOOKCORE_MAX_RUNS=8`)."""

    host: str = _text("127.0.0.1", "Address to listen on; anything but loopback needs a token.")
    port: int = _integer(8642, "Port to listen on, or the next free one if it is taken; 0 for any free port.")
    token: str = _text("", "Full-access token; generated and printed once if needed.", secret=True)
    read_token: str = _text("", "Read-only token.", secret=True)
    allowed_hosts: tuple[str, ...] = _names((), "Additional host names that requests to this server may use.")
    frame_ancestors: tuple[str, ...] = _names(
        (), "Sites that may show the dashboard in a frame: origins such as https://hub.example, `local`, or `none`."
    )
    certfile: str = _file("", "TLS certificate file (PEM).", secret=True)
    keyfile: str = _file("", "TLS private key file (PEM).", secret=True)
    root_path: str = _text("", "Path prefix of the reverse proxy, for example /hookcore.")
    memory: int = _size("2GB", "Memory limit for all runs together.")
    max_runs: int = _integer(64, "Maximum number of runs in the list; the oldest ended run makes room for a new one.")
    idle_stop_s: float = _number(0.0, "Stop after this many seconds without trainers and browsers; 0 means never.")
    lost_after_s: float = _number(15.0, "Show a run as lost after this many seconds without a message from it.")
    keep: str = _keep(
        "auto", "Folder for saved runs; `auto` is the user's data folder, `none` keeps runs in memory only."
    )
    keep_limit: int = _size("10GB", "Disk limit for saved runs; the oldest runs move to the trash first.")
    store: str = _text(
        "",
        "Address of ClickHouse (clickhouse://...): show the runs that collectors insert there, instead of accepting "
        "runs from trainers.",
    )
    retain: str = _text(
        "", "With a store: delete runs that have sent nothing for this many days, such as 30d; by default, keep all."
    )
    max_clients: int = _integer(64, "Maximum number of live streams.")
    max_body: int = _size("64MiB", "Maximum size of a decompressed request.")
    receive_s: float = _number(10.0, "Maximum time to receive a request, in seconds.")
    max_connections: int = _integer(1000, "Maximum number of open connections.")
    notify: tuple[str, ...] = _addresses(
        (),
        "Apprise addresses, such as slack://A/B/C, that get a message about each incident; they are secrets, and "
        "the variable keeps them out of process lists.",
        secret=True,
    )
    rules_file: str = _file("", "Python file with your own rules, which this server runs on all runs that it receives.")
    allow_commands: bool = _switch(
        False,
        "Let [coding agents](agents.md) that have the full-access token change what is captured; they only read "
        "by default.",
    )
    dashboard: bool = _switch(False, "Run as this user's dashboard, which saves each run where its trainer asks.")

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
        return cls(**_values_of(SERVER, given, environment))


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The settings of a collector, in addition to those it shares with a server. Each is a flag and a variable, too."""

    to: str = _text(
        "", "Address of the server that the collector sends to, or of ClickHouse (clickhouse://...); required."
    )
    to_token: str = _text("", "Token of that server.", secret=True)
    spool: str = _file("", "Folder of the spool; by default, one in the user's data folder.")
    spool_limit: int = _size(
        "10GB", "Disk limit of the spool; when it is reached, the oldest data is dropped and counted."
    )
    sync: float = _sync(
        1.0,
        "Seconds of data that a power failure may cost; 0 syncs each batch, `never` leaves syncing to the system. "
        "If the collector is killed, it loses nothing in any case.",
    )
    insert: float = _number(
        5.0,
        "With ClickHouse: insert data after this many seconds, even if it is fewer than 100,000 rows. With many "
        "collectors, use more seconds, because ClickHouse prefers few large inserts.",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CollectorSettings:
        """Return settings from arguments (text or values), then HOOKCORE_ variables, then defaults."""
        return cls(**_values_of(COLLECTOR, given, environment))


SERVER: Final = settings_in(ServerSettings)
COLLECTOR: Final = settings_in(CollectorSettings)
TABLES: Final = {"server": SERVER, "collector": COLLECTOR}


def _values_of(table: Iterable[Setting], given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for row in table:
        value = given.get(row.name)
        if isinstance(value, list):  # a flag that is repeated, each time with one item or several
            split: Callable[[str], Any] = row.from_text
            values[row.name] = row.value_of([item for text in value for item in split(text)])
        elif value is None:
            values[row.name] = row.value_in(environment)
        elif isinstance(value, str):
            values[row.name] = row.value_of_text(row.name, value)
        else:
            values[row.name] = row.value_of(value)
    return values
