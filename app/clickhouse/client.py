"""A client of ClickHouse over HTTP: the address of a cluster, and one connection for each request at a time."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from hookcore.delivery.dashboard.trust import trusted
from hookcore.errors import ArgumentError, HookcoreError

from .native import Answer, decode

# The address of a ClickHouse cluster: its shards, their replicas, the user, the database, and TLS.

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
            raise ArgumentError(f"{without_password(url)!r} is not an address of ClickHouse: use {EXAMPLE}")
        encrypted = SCHEMES[parts.scheme]
        who, _, hosts = parts.netloc.rpartition("@")
        user, _, password = who.partition(":")
        options = _options(parts, url)
        shards = tuple(
            tuple(_node(each, PORTS[encrypted], url) for each in shard.split(",")) for shard in hosts.split(";")
        )
        several = any(len(shard) > 1 for shard in shards)
        if several and options.get("replicated") == "0":
            raise ArgumentError(
                f"{without_password(url)!r} has several replicas and replicated=0: use one server for each shard"
            )
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


def without_password(url: str) -> str:
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
            f"{without_password(url)!r} has something else in place of a server: use {EXAMPLE}, and write /, ?, and # "
            "in a password as %2F, %3F, and %23"
        )
    return NodeAddress(host, int(said or port))


def _options(parts: SplitResult, url: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    wrong = [name for name in options if name not in OPTIONS]
    if wrong or parts.fragment:
        what = "an unknown option" if "@" in parts.query else f"the option {(wrong or ['#'])[0]!r}"
        raise ArgumentError(f"{without_password(url)!r} has {what}: use {', '.join(OPTIONS)}")
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


# A client of ClickHouse over HTTP: one connection for each request at a time, any replica of a shard.

CONNECT_S: Final = 2.0
QUERY_S: Final = 30.0
INSERT_S: Final = 30.0
SETTLE_S: Final = 1.0  # in which a server that answers again begins what was sent to it before
IDLE_S: Final = 2.0  # ClickHouse 18 closes a connection that was idle for three seconds
DOWN_S: Final = 1.0  # for which a server that failed isn't asked again, if there is another one
MISSING_TABLE: Final = 60
# Errors after which another replica may succeed: this one is read-only, has lost ZooKeeper, or is stopping.
OF_REPLICA: Final = frozenset({203, 209, 210, 225, 236, 242, 279, 285, 319, 999})
# What inserts ask of a server that knows these settings. Release 26 would insert blocks of several clients together. A
# block must be an insert of its own: its hash and the name of its query say what has become of it.
OF_INSERTS: Final = {
    "async_insert": 0,
    "deduplicate_blocks_in_dependent_materialized_views": 1,  # else a repeated block counts twice in `rollups`
    "max_partitions_per_insert_block": 0,  # signs of life are about runs of any number of days
}
_UNKNOWN_ISSUERS: Final = frozenset({18, 19, 20, 21})  # of certificates: OpenSSL's X509_V_ERR_...
_ERROR: Final = re.compile(r"Code: (\d+)")
_SAID: Final = re.compile(r"DB::Exception: (.*?)(?:, e\.what\(\)|\. \(|$)", re.DOTALL)


class ClickHouseError(HookcoreError):
    """ClickHouse refused a query."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UnreachableError(HookcoreError):
    """No server of a shard can be reached or can carry out a request. The request may have been carried out or not."""


@dataclass(slots=True)
class Node:
    """One server. All methods can be called by any thread."""

    address: NodeAddress
    cluster: ClusterAddress
    is_prepared: bool = False  # its tables were checked
    for_inserts: Mapping[str, Any] = field(default_factory=dict)  # those of OF_INSERTS that it knows
    down_until: float = float("-inf")
    trouble: str = ""
    _idle: list[tuple[float, http.client.HTTPConnection]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(
        self, sql: str, data: bytes | None = None, *, timeout_s: float = QUERY_S, database: bool = True, **settings: Any
    ) -> bytes:
        """Run a query, with `data` to insert, and return the answer.

        Raises ClickHouseError if ClickHouse says no, and OSError or HTTPException if there is no answer.
        """
        named = {"database": self.cluster.database} if database else {}
        given: Mapping[str, Any] = {**named, **({"query": sql} if data is not None else {}), **settings}
        connection = self._connection()
        try:
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            body = sql.encode() if data is None else data
            connection.request("POST", f"/?{urlencode(given)}", body, self._headers)
            with connection.getresponse() as response:
                found = response.read()
                is_fine, is_open = response.status == 200, not response.will_close
        except BaseException:
            connection.close()
            raise
        if is_open:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        else:
            connection.close()
        if not is_fine:
            raise _error(found)
        return found

    @property
    def _headers(self) -> dict[str, str]:
        return {"X-ClickHouse-User": self.cluster.user, "X-ClickHouse-Key": self.cluster.password}

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < IDLE_S:
                    return connection
                connection.close()
        connection = self._open()
        connection.connect()
        return connection

    def _open(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if not self.cluster.encrypted:
            return http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=trusted())

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                with contextlib.suppress(OSError):
                    self._idle.pop()[1].close()


def _error(body: bytes) -> ClickHouseError:
    text = body.decode("utf-8", "replace").strip()
    code, said = _ERROR.search(text), _SAID.search(text)
    return ClickHouseError((said[1] if said else text)[:500], int(code[1]) if code else 0)


def _trouble_of(error: Exception) -> str:
    """Return why there is no answer, and what to do if it is a matter of settings."""
    if isinstance(error, ssl.SSLCertVerificationError):
        told = f"its certificate is not trusted ({error.verify_message})"
        if error.verify_code in _UNKNOWN_ISSUERS:
            told += ": set HOOKCORE_CA_FILE to the file with the certificate authority (PEM) that issued it"
        return told
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}): use the server's https_port, or clickhouse:// for http_port"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Shard:
    """The replicas of one part of the data. Whichever answers is asked."""

    def __init__(
        self, address: ClusterAddress, number: int, prepare: Callable[[Node], None] = lambda node: None
    ) -> None:
        self.number = number
        self.nodes = [Node(shard, address) for shard in address.shards[number]]
        self.quorum, self.is_replicated = address.quorum, address.replicated
        self._prepare = prepare
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The servers of this shard."""
        return ", ".join(node.address.name for node in self.nodes)

    @property
    def is_reachable(self) -> bool:
        """Whether the newest request to some replica worked."""
        return any(not node.trouble for node in self.nodes)

    def read(self, sql: str) -> Answer:
        """Return the answer to a query. Raises ClickHouseError or UnreachableError."""
        return decode(self._any(lambda node: node.send(f"{sql} FORMAT Native", timeout_s=QUERY_S, wait_end_of_query=1)))

    def insert(self, table: str, block: bytes, name: str = "") -> None:
        """Insert a block. Only a replicated table recognizes a repetition.

        While a server still inserts a block that was given up, it refuses another one of the same `name`.
        """
        sql = f"INSERT INTO {table} FORMAT Native"
        named: dict[str, Any] = {"query_id": f"hookcore-{name}-{table}"} if name else {}
        self._any(
            lambda node: node.send(
                sql, block, timeout_s=INSERT_S, insert_quorum=self.quorum, **node.for_inserts, **named
            )
        )

    def do(self, sql: str) -> None:
        """Run a statement on some replica."""
        self._any(lambda node: node.send(sql, timeout_s=INSERT_S))

    def settle(self, name: str) -> None:
        """Wait until blocks whose names begin like this, and that were given up, are inserted or never will be.

        A server that hung may still have requests in its sockets. They are the first that it reads when it goes on.
        """
        running = f"SELECT count() AS count FROM system.processes WHERE query_id LIKE 'hookcore-{name}-%'"
        self.read(running)
        time.sleep(SETTLE_S)
        while self.read(running).one("count"):
            time.sleep(SETTLE_S)
        if self.is_replicated:
            self.do("SYSTEM SYNC REPLICA rows")

    def prepare(self) -> None:
        """Create the tables on all reachable replicas, so that they get the data even before they are queried."""
        for node in self.nodes:
            if not node.is_prepared and time.monotonic() > node.down_until:
                with contextlib.suppress(UnreachableError):
                    self._at(node, lambda node: b"")

    def _any(self, do: Callable[[Node], bytes]) -> bytes:
        """Do something at one replica, that of last time if it still answers."""
        for node in sorted(self.nodes, key=lambda node: node.down_until):
            with contextlib.suppress(UnreachableError):
                return self._at(node, do)
        raise UnreachableError(self.trouble)

    def _at(self, node: Node, do: Callable[[Node], bytes]) -> bytes:
        try:
            if not node.is_prepared:
                with self._lock:
                    self._prepare(node)
                node.is_prepared = True
            found = do(node)
        except ClickHouseError as error:
            node.is_prepared &= error.code != MISSING_TABLE
            if error.code not in OF_REPLICA:
                raise
            self._note(node, str(error))
        except (OSError, http.client.HTTPException) as error:
            node.close()
            self._note(node, _trouble_of(error))
        else:
            node.trouble, node.down_until = "", float("-inf")
            return found
        raise UnreachableError(node.trouble)

    @staticmethod
    def _note(node: Node, trouble: str) -> None:
        node.trouble, node.down_until = trouble, time.monotonic() + DOWN_S

    @property
    def trouble(self) -> str:
        """The last error of each server."""
        return "; ".join(f"{node.address.name}: {node.trouble or 'not asked'}" for node in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Cluster:
    """All shards. Each has runs of its own. Raises ArgumentError if the certificates to trust can't be read."""

    def __init__(self, address: ClusterAddress, prepare: Callable[[Node], None] = lambda node: None) -> None:
        if address.encrypted:
            trusted()  # a file that can't be used is refused here, not in some thread
        self.address = address
        self.shards: Sequence[Shard] = [Shard(address, number, prepare) for number in range(len(address.shards))]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
