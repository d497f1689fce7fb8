"""ClickHouse 26: tests that other files run with Debian's 18.16, and tests of what only a new release can do wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from hookcore.records.wire import frame_item
from hookcore_app.clickhouse.client import Cluster, ClusterAddress
from hookcore_app.clickhouse.native import encode
from hookcore_app.clickhouse.schema import OF_RUNS, connect, number_of_run
from hookcore_app.clickhouse.segments import Piece, blocks_of
from tests.clickhouse_nodes import Cluster as Nodes
from tests.clickhouse_nodes import running
from tests.clickhouse_world import TAPS, a_frame, count_once, database_of, new_database

# The imported tests run here again, with the servers of this file.
from tests.test_clickhouse_collector import (  # noqa: F401
    collector,
    connected,
    test_a_repeated_batch_is_stored_once_and_a_damaged_frame_is_counted,
    test_a_run_is_stored_with_names_description_items_and_signs_of_life,
    test_a_schema_of_a_later_release_is_refused_with_a_clear_message,
    test_a_segment_partly_inserted_by_a_killed_collector_is_completed,
    test_an_older_schema_is_migrated_step_by_step_and_keeps_its_data,
    test_runs_of_several_days_are_in_separate_partitions,
    test_the_newest_step_waits_for_its_other_parts,
    test_the_tables_are_made_once_and_found_again,
)
from tests.test_clickhouse_past import (  # noqa: F401
    long,
    long_one,
    shards,
    test_a_heatmap_of_a_long_run_shows_every_extreme_and_counts_every_step,
    test_histograms_of_a_long_run_count_every_value,
    test_points_of_a_long_run_match_exactly_the_steps_they_name,
)
from tests.test_clickhouse_servers import (  # noqa: F401
    serve,
    test_a_command_of_any_server_reaches_the_trainer_through_its_collector,
    test_days_with_only_long_silent_runs_are_dropped_everywhere,
    test_two_servers_show_the_same_runs_and_the_same_edits,
)
from tests.test_clickhouse_sums import (  # noqa: F401
    at_once,
    ranks,
    test_histograms_of_all_layers_over_many_steps_are_read_from_few_rows,
    test_stored_histograms_have_exactly_the_counts_of_the_steps,
    test_sums_of_a_release_without_summed_histograms_are_kept_and_histograms_are_added,
)
from tests.test_store_contract import (  # noqa: F401
    servers,
    test_a_long_run_opened_late_says_what_begins_late_and_answers_everything_else_alike,
    test_both_servers_give_the_same_answers,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with running(modern=True) as made:
        yield made


@pytest.fixture(scope="module")
def server(nodes: Nodes) -> Nodes:
    return nodes


@pytest.fixture
def url(nodes: Nodes) -> str:
    return new_database(nodes.url)


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    with closing(connect(ClusterAddress.of(new_database(nodes.url)), "a test")) as made:
        yield made


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
