"""A client of ClickHouse over HTTP: one connection for each request at a time, any replica of a shard."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from hookcore.delivery.dashboard.trust import trusted
from hookcore.errors import HookcoreError

from .address import ClusterAddress, NodeAddress
from .native import Answer, decode

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
        self.nodes = [Node(each, address) for each in address.shards[number]]
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
