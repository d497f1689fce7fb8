"""Queries about the ranks of a training: by REST, by the client, and on pages without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hookcore
from hookcore.errors import ServerError
from hookcore.records import STAT_COLUMN, Frame, ModuleRecord, Tap
from hookcore.records.vocabulary import REDUCTION_WAIT
from hookcore.records.wire import Description, Place
from hookcore.store import Store
from hookcore.store.rows import Rows
from hookcore_app.analysis import distributed
from hookcore_app.analysis.distributed import OfRank
from hookcore_app.runs import Run
from tests.api_world import STEPS, TAPS, fill, fill_ranks, make_frame, open_run
from tests.serving import TOKEN, Served, served

WORLD = 3


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        fill(open_run(found.runs, "single", started_s=1.0))
        fill_ranks(found.runs, world=WORLD, started_s=2.0)
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> hookcore.Client:
    return hookcore.Client(server.url, TOKEN)


def text(server: Served, path: str) -> str:
    return server.ask(f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close").decode()


def test_the_list_has_one_run_for_all_ranks(client: hookcore.Client) -> None:
    joint, single = client.runs()
    assert (joint.id, joint.name, single.ranks) == ("ranks-4f2a", "ddp", None)
    assert joint.ranks is not None
    assert (joint.ranks.world, joint.ranks.seen, joint.ranks.live, joint.ranks.missing) == (WORLD, WORLD, WORLD, ())
    member = client.run("4f2a-1")
    assert (member.rank, member.joint, member.ranks) == (1, "ranks-4f2a", None)


def test_the_table_of_ranks_lists_steps_durations_and_throughput(client: hookcore.Client) -> None:
    found = client.ranks()
    assert (found.steps, found.incomplete, found.waiting) == (STEPS, 0, 0)
    assert [(each.rank, each.run, each.newest_step, each.behind) for each in found.ranks] == [
        (rank, f"4f2a-{rank}", STEPS - 1, 0) for rank in range(WORLD)
    ]
    assert [each.seconds_per_step for each in found.ranks] == pytest.approx([0.25, 0.5, 0.75])
    assert [each.samples_per_second for each in found.ranks] == pytest.approx([32, 16, 32 / 3])
    assert [each.tokens_per_second for each in found.ranks] == [None] * WORLD  # the batches aren't tokens
    assert found.ranks[2].axes == {"data": (2, WORLD)}
    assert client.ranks("4f2a-1") == found  # for one of them


def test_a_map_of_ranks_for_a_tap_a_logged_value_and_the_duration(client: hookcore.Client, server: Served) -> None:
    of_tap = client.rank_map(TAPS[0], "mean", columns=STEPS)
    assert of_tap.ranks == tuple(range(WORLD))
    for rank in range(WORLD):
        member = server.runs.get(f"4f2a-{rank}")
        assert member is not None
        expected = member.store.series(0, "mean").mean
        assert np.asarray(of_tap.values)[rank].tolist() == expected.tolist()
    seconds = client.rank_map(columns=4)
    assert np.asarray(seconds.values).tolist() == [[0.25] * 4, [0.5] * 4, [0.75] * 4]
    assert seconds.newest is not None
    assert (seconds.newest.low, seconds.newest.median, seconds.newest.high) == (0.25, 0.5, 0.75)
    loss = client.rank_map(name="loss", first=5, last=5)
    assert np.asarray(loss.values)[:, 0].tolist() == pytest.approx([(1 + rank) / 6 for rank in range(WORLD)])
    assert (list(loss.first_step), list(loss.last_step)) == ([5], [5])


def test_waiting_and_late_ranks_are_found(client: hookcore.Client) -> None:
    found = client.ranks()
    assert found.waits is not None
    assert (found.waits.name, found.waits.steps, found.waits.latest) == (REDUCTION_WAIT, STEPS, 2)
    assert [each.wait_s for each in found.ranks] == pytest.approx([0.2, 0.1, 0.0])
    assert [each.wait_share for each in found.ranks] == pytest.approx([0.2 / 0.25, 0.1 / 0.5, 0.0])
    assert [each.after_first_s for each in found.ranks] == pytest.approx([0.0, 0.1, 0.2])
    assert [each.was_last for each in found.ranks] == [0, 0, STEPS]


def test_the_spread_of_each_layer_over_the_ranks(client: hookcore.Client, server: Served) -> None:
    found = client.rank_spread("output", "mean", step=5)
    outputs = [tap for tap in TAPS if tap.kind == "output"]
    assert [each.tap.record for each in found.layers] == outputs
    assert (found.step, found.total) == (5, len(outputs))
    for layer in found.layers:
        assert layer.tap.number is not None
        stores = [server.runs.get(f"4f2a-{rank}").store for rank in range(WORLD)]  # type: ignore[union-attr]
        values = [float(store.series(layer.tap.record, "mean", 5, 5).mean[0]) for store in stores]
        assert (layer.low, layer.median, layer.high) == (min(values), sorted(values)[1], max(values))
        assert layer.apart == pytest.approx((max(values) - min(values)) / abs(layer.median))
        assert (layer.odd, layer.finite, layer.present) == (
            None,
            WORLD,
            WORLD,
        )  # the first and the last one are equally far away
    newest = client.rank_spread("output", "mean")
    assert newest.step == STEPS - 1
    sorted_ = client.rank_spread("output", "mean", sort="high", limit=1)
    assert [each.high for each in sorted_.layers] == [max(each.high for each in newest.layers)]
    frame = found.to_pandas()
    assert frame["median"].tolist() == [each.median for each in found.layers]


def test_gradients_of_each_ranks_own_loss_are_called_local(server: Served) -> None:
    for page in ("", "/flow", "/flow/histograms", "/performance/ranks", "/model/tensors", "/flow/changes"):
        for run in ("ranks-4f2a", "4f2a-1"):
            shown = text(server, f"/runs/{run}{page}")
            assert "(local)</option>" in shown, (run, page)
            assert 'data-local="output_grad"' in shown, (run, page)
        assert "(local)" not in text(server, f"/runs/single{page}"), page
    assert 'class="label" title="Gradients of each rank&#39;s own loss' in text(
        server, "/runs/ranks-4f2a/model/layers?module=layers.1"
    )


def test_a_query_with_a_rank_is_limited_to_that_rank(client: hookcore.Client, server: Served) -> None:
    path = "/api/v1/series?run=ranks-4f2a&tap=0&stat=mean&rank=2"
    assert '"run":"4f2a-2"' in text(server, path)
    assert "rank 7 of ranks-4f2a has sent nothing yet; seen were 0, 1, 2" in text(server, path.replace("=2", "=7"))
    assert "only distributed trainings have ranks" in text(server, "/api/v1/overview?run=single&rank=0")


def test_errors_name_what_is_wrong(client: hookcore.Client) -> None:
    with pytest.raises(ServerError, match="the run single is a single process"):
        client.ranks("single")
    with pytest.raises(ServerError, match="no rank has 'never'"):
        client.rank_map(name="never")
    with pytest.raises(ServerError, match="either tap= or name="):
        client.rank_map(TAPS[0], name="loss")
    with pytest.raises(ServerError, match="unknown tap 'nothing output'"):
        client.rank_map("nothing output")
    with pytest.raises(ServerError, match="unknown stat"):
        client.rank_map(TAPS[0], "meen")


def test_the_pages_link_from_all_ranks_to_one_and_back(server: Served) -> None:
    page = text(server, "/runs/ranks-4f2a/performance/ranks?value=layers.0%20output&stat=mean")
    assert "3 of 3" in page
    assert "mean of layers.0 output" in page
    assert ">Samples/s</th>" in page
    assert "Tokens/s" not in page
    assert '<td class="number">10.67</td>' in page
    assert "Samples/s" not in text(server, "/runs/ranks-4f2a/performance/ranks?step=2")  # it shows the present
    assert 'href="runs/4f2a-2/performance/ranks"' in page
    assert "Rank 2 is late:" in page
    assert "unknown tap &#39;never&#39;" in text(server, "/runs/ranks-4f2a/performance/ranks?value=never")
    assert 'id="rank-spreads"' in text(server, "/runs/ranks-4f2a/model/layers?module=layers.0")
    assert 'id="rank-spreads"' not in text(server, "/runs/4f2a-0/model/layers?module=layers.0")
    assert 'href="runs/ranks-4f2a/flow"' in text(server, "/runs/4f2a-2/flow")
    assert "3 ranks</a>" in text(server, "/")
    single = text(server, "/runs/single")
    assert "pick-rank" not in single
    assert "/ranks" not in single
    assert "This run is a single process." in text(server, "/runs/single/performance/ranks")


def test_sharded_tensors_say_how_they_are_split_and_what_their_values_are(
    client: hookcore.Client, server: Served
) -> None:
    placement = f"Shard(0) over data, {WORLD} ranks"
    assert [each.placements for each in client.modules("layers.*", run="ranks-4f2a")] == [{"weight": placement}, {}]
    for page in ("model/layers?module={}", "drawer?module={}&part=about"):
        joint, rank, of_output = (
            text(server, f"/runs/{run}/{page.format(module)}")
            for run, module in (("ranks-4f2a", "head"), ("4f2a-1", "head"), ("4f2a-1", "layers.0"))
        )
        whole = (
            "In this run, values of weight are those of the whole tensor: parts are added up, and copies count once."
        )
        assert whole in joint, page
        assert "In this run, values of weight are those of this rank&#39;s part." in rank, page
        assert placement in of_output, page
        assert "In this run, values" not in of_output, page  # for the weight, none were captured


def frames_of(run: Run, step: int, **stats: float) -> Frame:
    found = make_frame(step, [1.0] * len(TAPS), scalars={}, elapsed_s=0.25)
    for name, value in stats.items():
        found.stats[0, STAT_COLUMN[name]] = value
    return found


def test_a_rank_without_finite_values_is_the_odd_one_and_shows_as_infinite() -> None:
    with served(lost_after_s=10_000.0) as found, hookcore.Client(found.url, TOKEN) as client:
        fill_ranks(found.runs, world=WORLD, steps=1)
        for rank in range(WORLD):
            run = found.runs.get(f"4f2a-{rank}")
            assert run is not None
            bad: dict[str, Any] = {"mean": np.nan, "count": 4, "nan": 4} if rank == 1 else {"mean": 1.0 + rank}
            run.take_record(frames_of(run, 1, **bad))
        shown = client.rank_map(TAPS[0], "mean", columns=2)
        assert np.asarray(shown.values)[:, 1].tolist() == [1.0, np.inf, 3.0]
        assert shown.newest is not None
        assert (shown.newest.odd, shown.newest.ranks) == (1, 2)
        layer = client.rank_spread(TAPS[0].kind, "mean", match=TAPS[0].module).layers[0]
        assert (layer.low, layer.high, layer.odd, layer.odd_value) == (1.0, 3.0, 1, np.inf)
        assert (layer.apart, layer.finite, layer.present) == (np.inf, 2, 3)


def test_a_map_weights_merged_steps_by_their_finite_values(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ends = Store(), np.array([0, 8])
    store.append(make_frame(0, [1.0] * len(TAPS), scalars={"loss": 1.0}, new_taps=TAPS))
    mean, finite, present = (np.array(each)[:, None] for each in ([1.0, 4.0], [6, 2], [8, 8]))
    rows = Rows(ends, ends + 7, mean, mean, mean, finite, present, present - finite)
    monkeypatch.setattr(distributed, "rows_of_all", lambda asked, most: [rows])
    assert distributed.map_of([OfRank(0, store)], "loss", "", None, None, 1).values.tolist() == [[14 / 8]]


@pytest.fixture
def pipeline() -> Iterator[Served]:
    """Serve a training of three ranks with one layer each, and then one of two ranks."""
    with served(lost_after_s=10_000.0) as found:
        for attempt, world in enumerate((3, 2)):
            for rank in range(world):
                place = Place(job="pipe", rank=rank, world=world, attempt=attempt)
                run = open_run(found.runs, f"pipe-{attempt}-{rank}", name=f"pipe rank {rank}", place=place)
                tap = Tap(f"stage{rank}", "output")
                module = ModuleRecord(tap.module, "Linear", None)
                assert run.training is not None
                run.training.describe_of(run, Description(0, (module,), (), ()))
                for step in range(3):
                    new = (tap,) if step == 0 else ()
                    run.take_record(make_frame(step, [2.0], scalars={"loss": 1.0}, new_taps=new))
        yield found


def test_a_value_of_only_one_rank_is_not_called_equal(pipeline: Served) -> None:
    for page in (
        "/runs/ranks-pipe/performance/ranks?kind=output&step=2",
        "/runs/ranks-pipe/model/layers?module=stage1&step=2",
    ):
        shown = text(pipeline, page)
        assert ">only one rank</td>" in shown, page
        assert ">equal</td>" not in shown, page


def test_the_number_of_ranks_belongs_to_the_attempt(pipeline: Served) -> None:
    before = text(pipeline, "/runs/ranks-pipe/performance/ranks?value=loss&step=2")
    assert "; all ranks are equal." in before
    after = text(pipeline, "/runs/ranks-pipe/performance/ranks?value=loss&step=4")
    assert "ranks have a finite value" not in after


def test_an_empty_list_of_layers_says_why(pipeline: Served) -> None:
    page = "/runs/ranks-pipe/performance/ranks?kind=output"
    assert "No layer matches the filter." in text(pipeline, f"{page}&f=nothing")
    held = text(pipeline, "/runs/ranks-pipe/performance/ranks?kind=param&step=1")
    assert "No rank has a value of this kind in step 1. The nearest captured steps are 0 and 2." in held
    assert "No step of this kind was captured by all ranks." in text(
        pipeline, "/runs/ranks-pipe/performance/ranks?kind=param"
    )
