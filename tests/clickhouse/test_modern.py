"""ClickHouse 26: what only a new release can do wrong. Other files run tests with both releases."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from hookcore.records.wire import frame_item
from hookcore_app.clickhouse.client import Cluster, ClusterAddress
from hookcore_app.clickhouse.native import encode
from hookcore_app.clickhouse.schema import OF_RUNS, connect, number_of_run
from hookcore_app.clickhouse.writing import Piece, blocks_of
from tests.clickhouse.nodes import Cluster as Nodes
from tests.clickhouse.world import TAPS, a_frame, count_once, database_of, new_database

pytestmark = [pytest.mark.slow, pytest.mark.clickhouse("26")]


def test_columns_have_codecs(cluster: Cluster) -> None:
    shard = cluster.shards[0]
    assert shard.read("SELECT version() AS version").texts("version")[0].startswith(b"26.")
    found = shard.read(
        "SELECT concat(table, '.', name) AS name, compression_codec AS codec FROM system.columns "
        "WHERE database = currentDatabase()"
    )
    codecs = dict(zip(found.texts("name"), found.texts("codec"), strict=True))
    assert codecs[b"rows.rms"] == b"CODEC(ZSTD(1))"
    assert codecs[b"rows.step"] == b"CODEC(Delta(8), ZSTD(1))"
    assert codecs[b"sketches.bins"] == b"CODEC(Delta(2), ZSTD(1))"
    assert codecs[b"sketches.counts"] == b"CODEC(T64, ZSTD(1))"
    assert codecs[b"sketch_rollups.sumsMap.count"] == b"CODEC(T64, ZSTD(1))"
    assert codecs[b"rank_sketch_rollups.counts"] == b"CODEC(T64, ZSTD(1))"


def test_a_block_is_an_insert_of_its_own_with_runs_of_any_number_of_days(cluster: Cluster) -> None:
    shard = cluster.shards[0]
    (usual,) = shard.read("SELECT value FROM system.settings WHERE name = 'async_insert'").texts("value")
    assert usual == b"1", "a server collects inserts, unless it is asked not to"
    shard.do(
        "CREATE TABLE seen (day Date, is_collected UInt8 DEFAULT getSetting('async_insert')) ENGINE = MergeTree "
        "PARTITION BY day ORDER BY day"
    )
    shard.insert("seen", encode({"day": ("Date", np.arange(20_000, 20_150, dtype=np.uint16))}))
    found = shard.read("SELECT count() AS days, sum(is_collected) AS collected FROM seen")
    assert (found.one("days"), found.one("collected")) == (150, 0)


def test_a_repeated_block_is_recognized_by_its_hash_through_the_view_too(nodes: Nodes) -> None:
    """The engine has no replicas here, but recognizes blocks of other tables in the same way if that is enabled."""
    url, items = new_database(nodes.url), [frame_item(step, a_frame(step)) for step in range(20)]
    with closing(connect(ClusterAddress.of(url), "a test")) as cluster:
        shard = cluster.shards[0]
        for table in OF_RUNS:
            shard.do(f"ALTER TABLE {table.name} MODIFY SETTING non_replicated_deduplication_window = 100")
        for part, before in ((items[:10], -1), (items[:10], -1), (items[10:], 9), (items[:10], -1)):
            piece = Piece(number_of_run("run"), 20_000, 0, 0, len(TAPS), before, part)
            for table, block in blocks_of("spool", part[0].number, [piece]).items():
                shard.insert(table.name, block)
    count_once(nodes.nodes, database_of(url), {"run": 20})
