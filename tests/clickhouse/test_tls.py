"""ClickHouse over TLS: a collector and a server trust the configured authorities, and say why they reject others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from hookcore.errors import ArgumentError
from hookcore_app.clickhouse.client import PASSWORD as VARIABLE
from hookcore_app.clickhouse.client import ClusterAddress, Shard, UnreachableError
from hookcore_app.clickhouse.schema import connect
from tests.clickhouse.nodes import PASSWORD, USER, Node, running
from tests.clickhouse.world import Collector, collecting, count_once, wait_until_stored
from tests.ports import free_port
from tests.proxying import CERTIFICATE
from tests.serving import make_world
from tests.waiting import wait_for

_HTTPS: Final = """<https_port>{port}</https_port><openSSL><server>
<certificateFile>{folder}/cert.pem</certificateFile><privateKeyFile>{folder}/key.pem</privateKeyFile>
<verificationMode>none</verificationMode></server></openSSL>"""
pytestmark = [pytest.mark.slow, pytest.mark.all]


@dataclass(frozen=True, slots=True)
class Secured:
    """A server with TLS on one port and without it on another, its certificate, and a certificate from someone else."""

    node: Node
    port: int
    certificate: Path
    other: Path

    def url(self, database: str, scheme: str = "clickhouses", port: int = 0, host: str = "127.0.0.1") -> str:
        return f"{scheme}://{USER}@{host}:{port or self.port}/{database}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "other")]
    for folder in folders:
        subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
    ours, other = (folder / "cert.pem" for folder in folders)
    port = free_port()
    with running(also=_HTTPS.format(port=port, folder=folders[0])) as nodes:
        yield Secured(nodes.nodes[0], port, ours, other)


@pytest.fixture
def trust(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_CA_FILE", str(secured.certificate))
    monkeypatch.setenv(VARIABLE, PASSWORD)


def test_a_collector_that_does_not_trust_the_certificate_says_so_and_keeps_everything_until_it_does(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    url = f"{secured.url('stored')}?password_file={secret}"
    monkeypatch.setenv("HOOKCORE_CA_FILE", str(secured.other))
    first = Collector(tmp_path, url)
    first.inserter.start()
    wait_for(lambda: caplog.messages, "the warning, before there is data")
    first.send(range(10))
    first.end(10)
    first.stop()
    (said, *_) = caplog.messages
    assert f"127.0.0.1:{secured.port}: its certificate is not trusted (" in said
    assert "set HOOKCORE_CA_FILE to the file with the certificate authority (PEM) that issued it" in said
    assert "incoming data waits in the spool" in said
    assert not any(PASSWORD in each for each in caplog.messages)
    assert "stored" not in secured.node.ask("SHOW DATABASES", "default").split()

    monkeypatch.setenv("HOOKCORE_CA_FILE", str(secured.certificate))
    with collecting(url, tmp_path / "spool", free_port(), "--insert", "0.1"):
        wait_until_stored([secured.node], "stored", {"run": 10})
    count_once([secured.node], "stored", {"run": 10})

    monkeypatch.setenv(VARIABLE, PASSWORD)
    world = make_world(store=secured.url("stored"))
    world.app.state.shared.start()
    try:
        assert world.client.get("/api/v1/runs/run").json()["steps"] == 10
    finally:
        world.app.state.shared.close()


@pytest.mark.usefixtures("trust")
def test_tls_mismatches_are_named(secured: Secured) -> None:
    plain = secured.node.port
    for url, message in (
        (secured.url("a", host="127.1"), r"its certificate is not trusted \(.*not valid for '127\.1'"),
        (secured.url("a", port=plain), r"TLS failed \(.*use the server's https_port, or clickhouse:// for http_port"),
        (secured.url("a"), "it answers"),
    ):
        with closing(connect(ClusterAddress.of(url), "a test")) as cluster:
            # A busy machine may also answer too late.
            wait_for(lambda shard=cluster.shards[0], message=message: re.search(message, _answer_of(shard)), message)


def _answer_of(shard: Shard) -> str:
    try:
        return "it answers" if shard.read("SELECT 1 AS one").one("one") == 1 else ""
    except UnreachableError as error:
        return str(error)


def test_a_file_without_certificates_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_CA_FILE", str(tmp_path / "nothing.pem"))
    with pytest.raises(ArgumentError, match=r"can't use HOOKCORE_CA_FILE=.*nothing\.pem.*give a file with PEM"):
        connect(ClusterAddress.of("clickhouses://box/runs"), "a test")
