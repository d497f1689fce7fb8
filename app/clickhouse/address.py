"""The address of a ClickHouse cluster: its shards, their replicas, the user, the database, and TLS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hookcore.errors import ArgumentError

SCHEMES: Final = {"clickhouse": False, "clickhouses": True}  # whether it is encrypted
PASSWORD: Final = "HOOKCORE_CLICKHOUSE_PASSWORD"
OPTIONS: Final = ("password_file", "replicated", "quorum")
PORTS: Final = {False: 8123, True: 8443}
EXAMPLE: Final = "clickhouse://user@host:8123/database, with replicas separated by commas and shards by semicolons"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """One server of the cluster."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """The server as messages name it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster. A run is on one shard, and each replica of the shard has the same data."""

    shards: tuple[tuple[NodeAddress, ...], ...]
    database: str
    user: str = "default"
    password: str = field(default="", repr=False)
    encrypted: bool = False
    replicated: bool = False
    quorum: int = 0  # replicas that must have a block before it counts as written

    @classmethod
    def of(cls, url: str, environment: Mapping[str, str] = os.environ) -> ClusterAddress:
        """Read an address such as `clickhouse://user@a:8123,b:8123;c:8123/database`. Raises ArgumentError."""
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ArgumentError(f"{shown(url)!r} is not an address of ClickHouse: use {EXAMPLE}")
        encrypted = SCHEMES[parts.scheme]
        who, _, hosts = parts.netloc.rpartition("@")
        user, _, password = who.partition(":")
        options = _options(parts, url)
        shards = tuple(
            tuple(_node(each, PORTS[encrypted], url) for each in shard.split(",")) for shard in hosts.split(";")
        )
        several = any(len(shard) > 1 for shard in shards)
        if several and options.get("replicated") == "0":
            raise ArgumentError(f"{shown(url)!r} has several replicas and replicated=0: use one server for each shard")
        return cls(
            shards,
            unquote(parts.path.strip("/")) or "hookcore",
            unquote(user) or "default",
            unquote(password) or _secret(options.get("password_file", ""), environment),
            encrypted,
            several or options.get("replicated") == "1",
            int(options.get("quorum", "0")),
        )

    @property
    def name(self) -> str:
        """The address without its password."""
        scheme = "clickhouses" if self.encrypted else "clickhouse"
        hosts = ";".join(",".join(node.name for node in shard) for shard in self.shards)
        return f"{scheme}://{self.user}@{hosts}/{self.database}"


def is_clickhouse(url: str) -> bool:
    """Return whether an address is one of ClickHouse."""
    return url.partition("://")[0] in SCHEMES


def shown(url: str) -> str:
    """Return an address without the password in it, if it has one, also if it lacks its scheme."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    who, at, where = rest.rpartition("@")
    return f"{scheme}{separator}{who.partition(':')[0]}{at}{where}"


def _node(text: str, port: int, url: str) -> NodeAddress:
    host, bracket, rest = text.partition("]")
    if bracket:
        host, said = host.removeprefix("["), rest.removeprefix(":")
    else:
        host, _, said = text.partition(":")
    if not host or not ((said.isascii() and said.isdigit()) or not said) or not 0 < int(said or port) < 65536:
        # It doesn't repeat what is there, which may be a part of a password.
        raise ArgumentError(
            f"{shown(url)!r} has something else in place of a server: use {EXAMPLE}, and write /, ?, and # in a "
            "password as %2F, %3F, and %23"
        )
    return NodeAddress(host, int(said or port))


def _options(parts: SplitResult, url: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    wrong = [name for name in options if name not in OPTIONS]
    if wrong or parts.fragment:
        what = "an unknown option" if "@" in parts.query else f"the option {(wrong or ['#'])[0]!r}"
        raise ArgumentError(f"{shown(url)!r} has {what}: use {', '.join(OPTIONS)}")
    if options.get("replicated", "0") not in ("0", "1"):
        raise ArgumentError(f"replicated={options['replicated']!r} in the address of ClickHouse: use 1 or 0")
    if not options.get("quorum", "0").isdecimal():
        raise ArgumentError(f"quorum={options['quorum']!r} in the address of ClickHouse: use the number of replicas")
    return options


def _secret(path: str, environment: Mapping[str, str]) -> str:
    if not path:
        return environment.get(PASSWORD, "")
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"password_file={path!r} in the address of ClickHouse can't be read: {error}") from None
