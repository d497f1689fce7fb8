"""Fixtures of ClickHouse tests: one server for all tests of a process, and a database for each test or file.

Tests run with Debian's release, unless they are marked with others: `clickhouse("18.16", "26")`. The newer release runs
only with `--all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from hookcore_app.clickhouse import schema
from hookcore_app.clickhouse.client import Cluster, ClusterAddress, Shard
from hookcore_app.clickhouse.schema import MIGRATIONS, Schema, connect
from tests.clickhouse.nodes import Cluster as Nodes
from tests.clickhouse.nodes import running
from tests.clickhouse.world import Collector, new_database
from tests.serving import World, make_world

OLD: Final = "18.16"
Connect = Callable[..., Shard]
Serve = Callable[..., World]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each release of its mark."""
    if "nodes" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("clickhouse")
        releases = (OLD,) if mark is None else mark.args
        marks = {release: () if release == OLD else pytest.mark.all for release in releases}
        each = [pytest.param(release, marks=marks[release]) for release in releases]
        metafunc.parametrize("nodes", each, indirect=True, scope="session")


@pytest.fixture(scope="session")
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Run a ClickHouse server, which no test may stop."""
    with running(modern=request.param != OLD) as made:
        yield made


@pytest.fixture
def url(nodes: Nodes) -> str:
    """Return the address of a database of one test."""
    return new_database(nodes.url)


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    """Return a client of a database of the tests of one file."""
    with closing(connect(ClusterAddress.of(new_database(nodes.url)), "a test")) as made:
        yield made


@pytest.fixture(scope="module")
def shards(cluster: Cluster) -> Iterator[list[Shard]]:
    """Return two shards, which are two databases of one server."""
    other = replace(cluster.address, database=f"{cluster.address.database}_other")
    with closing(connect(other, "a test")) as made:
        made.shards[0].number = 1
        yield [cluster.shards[0], made.shards[0]]


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Return a function that connects to the first shard of an address, with these migrations."""
    with ExitStack() as stack:

        def to(url: str, *migrations: Callable[[schema.Server], Iterator[str]]) -> Shard:
            address = ClusterAddress.of(url)
            cluster = Cluster(address, Schema(address, "a test", migrations or MIGRATIONS).prepare)
            stack.callback(cluster.close)
            return cluster.shards[0]

        yield to


@pytest.fixture
def collector(tmp_path: Path, url: str) -> Iterator[Collector]:
    """Return a collector in this process."""
    made = Collector(tmp_path, url)
    made.inserter.start()
    yield made
    made.stop()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server over ClickHouse."""
    with ExitStack() as stack:

        def start(url: str, **settings: object) -> World:
            world = make_world(store=url, **settings)
            stack.callback(world.app.state.shared.close)
            world.app.state.shared.start()
            return world

        yield start
