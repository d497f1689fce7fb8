"""ClickHouse servers (Debian's 18.16 or the engine of release 26) and ZooKeeper, in temporary folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.ports import free_port, free_ports
from tests.waiting import wait_for

USER: Final = "hookcore"
PASSWORD: Final = "secret of the tests"
DATABASE: Final = "runs"
_SERVER: Final = "/usr/sbin/clickhouse-server"
_MODERN: Final = Path(__file__).with_name("modern.py")
_ZOOKEEPER: Final = "/etc/zookeeper/conf_example:/usr/share/java/zookeeper.jar"
_CONFIG: Final = """<yandex>
<logger><level>warning</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
<http_port>{http}</http_port><tcp_port>{tcp}</tcp_port>
<interserver_http_port>{interserver}</interserver_http_port><interserver_http_host>127.0.0.1</interserver_http_host>
<listen_host>127.0.0.1</listen_host>
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>100000000</mark_cache_size><keep_alive_timeout>3</keep_alive_timeout><timezone>UTC</timezone>
{also}
</yandex>
"""
_CLUSTERED: Final = """<zookeeper>
<node><host>127.0.0.1</host><port>{port}</port></node><session_timeout_ms>5000</session_timeout_ms>
</zookeeper>
<macros><shard>{shard}</shard><replica>{replica}</replica></macros>"""
_USERS: Final = f"""<yandex>
<profiles><default><max_memory_usage>2000000000</max_memory_usage></default></profiles>
<users><{USER}><password>{PASSWORD}</password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></{USER}></users>
<quotas><default></default></quotas>
</yandex>
"""


@dataclass
class Process:
    """A server that can be killed and started again with the same files."""

    command: Sequence[str]
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        """Kill it without warning, like a power failure."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Suspend it: it stops answering, but its connections stay open."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


@dataclass
class Node(Process):
    """One ClickHouse server."""

    def ask(self, sql: str, database: str = DATABASE) -> str:
        """Return the answer to a query as tab-separated text, without the final newline."""
        headers = {"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD}
        url = f"http://127.0.0.1:{self.port}/?database={database}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, sql.encode(), headers), timeout=60) as answer:
                return str(answer.read().decode().rstrip("\n"))
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    def number(self, sql: str) -> int:
        """Return the answer to a query for one integer."""
        return int(self.ask(sql))

    @property
    def is_up(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
            return True
        return False

    def wait(self) -> None:
        wait_for(lambda: self.is_up, f"the start of ClickHouse on port {self.port}")


def make_node(folder: Path, also: str = "", modern: bool = False) -> Node:
    """Return a server with these additions to its configuration. Start it before use."""
    for each in ("data", "tmp"):
        (folder / each).mkdir(parents=True)
    http, tcp, interserver = free_ports(3)
    if modern:
        return Node([sys.executable, str(_MODERN), str(folder), str(http)], folder, http)
    about = {"folder": folder, "http": http, "tcp": tcp, "interserver": interserver, "also": also}
    (folder / "config.xml").write_text(_CONFIG.format(**about))
    (folder / "users.xml").write_text(_USERS)
    assert Path(_SERVER).exists(), "Debian's package clickhouse-server is missing: `make test` as root installs it"
    return Node([_SERVER, f"--config-file={folder}/config.xml"], folder, http)


def make_zookeeper(folder: Path) -> Process:
    """Return a ZooKeeper. Start it before use."""
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "zoo.cfg"
    config.write_text(f"tickTime=500\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n")
    with config.open("a") as file:
        file.write("admin.enableServer=false\n4lw.commands.whitelist=srvr\n")
    assert shutil.which("java"), "Debian's package zookeeperd is missing: `make test` as root installs it"
    command = ["java", "-Xmx128m", "-Dzookeeper.root.logger=ERROR,CONSOLE", "-cp", _ZOOKEEPER]
    return Process([*command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)], folder, port)


def is_answering(zookeeper: Process) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", zookeeper.port), 5) as connection:
        connection.sendall(b"srvr")
        return b"Mode:" in connection.recv(4096)
    return False


@dataclass
class Cluster:
    """Shards of replicas, and the ZooKeeper that they share, if they have one."""

    shards: list[list[Node]]
    zookeeper: Process | None = None

    @property
    def nodes(self) -> list[Node]:
        return [node for shard in self.shards for node in shard]

    @property
    def url(self) -> str:
        """The address of all shards and replicas, including the password."""
        hosts = ";".join(",".join(f"127.0.0.1:{node.port}" for node in shard) for shard in self.shards)
        return f"clickhouse://{USER}:{PASSWORD.replace(' ', '%20')}@{hosts}/{DATABASE}"


@contextmanager
def running(shards: int = 1, replicas: int = 1, *, modern: bool = False, also: str = "") -> Iterator[Cluster]:
    """Run ClickHouse: a single server of either release, or a cluster with ZooKeeper."""
    folder = Path(tempfile.mkdtemp(prefix="hookcore-clickhouse-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        zookeeper = None
        if replicas > 1:
            zookeeper = make_zookeeper(folder / "zookeeper")
            zookeeper.start()
            stack.callback(zookeeper.kill)
        cluster = Cluster([], zookeeper)
        for shard in range(shards):
            cluster.shards.append([])
            for replica in range(replicas):
                names = {"shard": f"s{shard}", "replica": f"r{replica}"}
                clustered = _CLUSTERED.format(port=zookeeper.port, **names) if zookeeper else ""
                node = make_node(folder / f"{shard}-{replica}", clustered + also, modern)
                cluster.shards[-1].append(node)
        if zookeeper is not None:
            wait_for(lambda: is_answering(zookeeper), "the start of ZooKeeper")
        for node in cluster.nodes:
            node.start()
            stack.callback(node.kill)
        for node in cluster.nodes:
            node.wait()
        yield cluster
