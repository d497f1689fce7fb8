"""What differs in some steps: the store's sums, the ranking, the sentences, REST, and the page."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hookcore.reading.answers import Differences
from hookcore.records import Tap
from hookcore.records.sketch import BINS
from hookcore.store import Store
from hookcore.store.unlike import Distribution, Sample, apart, distributions, shares_apart
from hookcore_app.analysis.comparison import Side, message_of, what_differs
from tests.api_world import STEPS, fill_ranks, open_run
from tests.build import frame, make_info, stats_of
from tests.serving import make_world
from tests.sketches import block_of, sketch_of

TAPS = (Tap("a", "output"), Tap("b", "output"), Tap("b", "output_grad"))
NUMBERS = np.arange(len(TAPS))


def _store(rows: list[list[Any]], max_bytes: int = 40_000_000, first: int = 0, **scalars: list[float]) -> Store:
    """Return a store whose step i has these values for each tap."""
    store = Store(max_bytes)
    _fill(store, rows, first, **scalars)
    return store


def _fill(store: Store, rows: list[list[Any]], first: int = 0, **scalars: list[float]) -> None:
    for place, row in enumerate(rows):
        block = block_of([sketch_of(values) for values in row])
        stats = stats_of(len(row), count=[np.size(values) for values in row])
        logged = {name: values[place] for name, values in scalars.items()}
        new = TAPS[: len(row)] if first + place == 0 else ()
        store.append(frame(first + place, stats, sketches=block, new_taps=new, scalars=logged))


def _normal(rng: np.random.Generator, scale: float = 1.0, size: int = 500) -> NDArray[np.float64]:
    return rng.normal(0, scale, size)


def _compare(store: Store, first: int | None, last: int | None) -> Differences:
    inside = store.sample(first, last)
    return what_differs(Side(store, inside), Side(store, store.sample(but=inside)), lambda _: True)


@given(
    st.lists(st.lists(st.lists(st.floats(width=32), max_size=6), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_the_sums_of_a_sample_are_those_of_its_steps(rows: list[list[list[float]]], one: int, two: int) -> None:
    store = _store(rows)
    inside = store.sample(min(one, two), max(one, two))
    outside = store.sample(but=inside)
    for number in NUMBERS:
        for sample, is_in in ((inside, True), (outside, False)):
            steps = [row for step, row in enumerate(rows) if (min(one, two) <= step <= max(one, two)) == is_in]
            expected = sketch_of(np.concatenate([np.empty(0), *(row[number] for row in steps)])).counts
            assert np.array_equal(sample.sums(NUMBERS)[number], expected)
            assert np.array_equal(sample.sums(np.array([number]))[0], expected)


def test_sums_of_taps_in_any_order_are_the_same() -> None:
    rng = np.random.default_rng(0)
    sample = _store([[_normal(rng), _normal(rng, 5), _normal(rng, 9)] for _ in range(5)]).sample()
    assert np.array_equal(sample.sums(np.array([2, 0])), sample.sums(NUMBERS)[[2, 0]])
    assert not sample.sums(np.array([7])).any()


def test_old_steps_that_are_kept_as_sums_are_in_one_sample_only_and_the_sample_says_how_far_it_reaches() -> None:
    rng = np.random.default_rng(1)
    rows = [[_normal(rng, size=400) for _ in TAPS] for _ in range(400)]
    store = _store(rows, max_bytes=1_500_000)
    inside = store.sample(100, 101)
    assert inside.first is not None
    assert inside.last is not None
    assert inside.first <= 100
    assert inside.last >= 101
    assert inside.steps > 2
    outside = store.sample(but=inside)
    assert inside.steps + outside.steps == 400
    whole = inside.sums(NUMBERS) + outside.sums(NUMBERS)
    for number in NUMBERS:
        assert np.array_equal(whole[number], sketch_of(np.concatenate([row[number] for row in rows])).counts)


def test_equal_distributions_have_distance_zero_and_disjoint_ones_have_distance_one() -> None:
    rng = np.random.default_rng(2)
    counts = sketch_of(_normal(rng, size=100_000)).counts.astype(float)[None]
    other = sketch_of(_normal(rng, size=100_000)).counts.astype(float)[None]
    far = sketch_of(rng.uniform(1e6, 2e6, 100_000)).counts.astype(float)[None]
    assert apart(counts, counts)[0] == 0
    assert apart(counts, other)[0] < 0.005
    assert apart(counts, far)[0] > 0.98
    assert np.isnan(apart(counts, np.zeros((1, BINS)))[0])


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_chance_is_rarely_mistaken_for_a_difference(size: int) -> None:
    rng = np.random.default_rng(size)
    ones = np.array([sketch_of(_normal(rng, size=size)).counts for _ in range(300)], float)
    twos = np.array([sketch_of(_normal(rng, size=size)).counts for _ in range(300)], float)
    found = apart(ones, twos)
    assert np.median(found) < 0.02
    assert np.quantile(found, 0.99) < size**-0.5


def test_the_layer_that_changed_comes_first_and_the_message_says_how() -> None:
    rng = np.random.default_rng(3)
    rows = [[_normal(rng), _normal(rng, 8 if 40 <= step < 50 else 1), _normal(rng)] for step in range(100)]
    found = _compare(_store(rows), 40, 49)
    assert (found.inside.steps, found.outside.steps, found.compared, found.not_compared) == (10, 90, 3, 0)
    first = found.layers[0]
    assert (first.tap.record, first.tap.number) == (TAPS[1], 1)
    assert first.share > 0.5
    assert first.usual is not None
    assert first.usual < 0.05
    assert not first.is_usual
    factor = re.match(r"([\d.]+) times larger", first.message)
    assert factor is not None
    assert 7 < float(factor[1]) < 9
    assert all(layer.share < 0.1 for layer in found.layers[1:])
    assert first.inside.sum() == 10 * 500
    assert first.outside.sum() == 90 * 500
    assert len(first.edges) == len(first.inside) + 1


def test_a_slow_drift_is_called_usual() -> None:
    rng = np.random.default_rng(4)
    rows = [[_normal(rng, 1.02**step), _normal(rng), _normal(rng)] for step in range(200)]
    found = _compare(_store(rows), 90, 110)
    drifting = next(layer for layer in found.layers if layer.tap.record == TAPS[0])
    assert drifting.share > 0.02
    assert drifting.is_usual


def test_without_other_windows_nothing_is_called_usual() -> None:
    rng = np.random.default_rng(5)
    rows = [[_normal(rng, 1 + 5 * (step >= 10)), _normal(rng), _normal(rng)] for step in range(15)]
    found = _compare(_store(rows), 0, 9)
    assert found.layers[0].usual is None
    assert not found.layers[0].is_usual


def test_a_tap_without_values_in_one_of_the_samples_is_not_compared() -> None:
    rng = np.random.default_rng(6)
    store = _store([[_normal(rng), [], []] for _ in range(5)])
    _fill(store, [[_normal(rng), _normal(rng), []] for _ in range(5)], first=5)
    found = _compare(store, 5, 9)
    assert (found.compared, found.not_compared) == (1, 2)


def test_without_steps_nothing_is_compared() -> None:
    rng = np.random.default_rng(7)
    found = _compare(_store([[_normal(rng)] for _ in range(5)]), None, None)
    assert (found.outside.steps, found.compared, found.not_compared, found.layers) == (0, 0, 1, ())


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ([1.0, np.nan], [1.0, 1.0], "50.0% NaN instead of 0.0%"),
        ([1.0, -np.inf], [1.0, 1.0], "50.0% infinite instead of 0.0%"),
        ([0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], "75.0% zeros instead of 25.0%"),
        ([1.0, 1.0], [1.0, -1.0], "100.0% positive instead of 50.0%"),
        ([1.0], [8.0], "8 times smaller"),
        ([1e-8], [3e-4], "29,600 times smaller (median magnitude 9.76e-9 instead of 2.89e-4)"),
        ([1.0, 1.0, 1.1], [1.0, 1.0, 1.0], "a different shape at the same scale"),
    ],
)
def test_the_message_names_the_differences(inside: list[float], outside: list[float], words: str) -> None:
    one, two = (Distribution(sketch_of(values).counts.astype(float)) for values in (inside, outside))
    assert words in message_of(one, two)


def test_a_distribution_knows_its_median_magnitude_and_shares() -> None:
    rng = np.random.default_rng(8)
    values = np.concatenate([rng.lognormal(0, 2, 999) * rng.choice([-1, 1], 999), np.zeros(200)])
    (found,) = distributions(_store([[values]]).sample(), np.array([0]))
    nonzero = values[values != 0]
    assert found.number == len(values)
    assert found.magnitude == pytest.approx(np.median(np.abs(nonzero)), rel=0.12)
    assert found.zero == pytest.approx(200 / 1199)
    assert found.positive == pytest.approx((nonzero > 0).mean())


def test_logged_values_are_ranked_too() -> None:
    rng = np.random.default_rng(9)
    rows = [[_normal(rng)] for _ in range(100)]
    loss = [9.0 + step % 3 if 40 <= step < 60 else 1.0 + step % 3 for step in range(100)]
    (found,) = _compare(_store(rows, loss=loss, lr=[0.1] * 100), 40, 59).logged
    assert found.name == "loss"
    assert found.share > 0.7
    assert found.mean == pytest.approx((np.mean(loss[40:60]), np.mean(loss[:40] + loss[60:])))
    assert found.low == (9.0, 1.0)
    assert found.high == (11.0, 3.0)
    assert found.message == "mean 10.05 instead of 1.975"


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (
            lambda step: np.nan if step % 2 else 3.0,
            "10 of 20 values are NaN or infinite instead of 0 of 80; mean of the finite values: 3 instead of 1",
        ),
        (
            lambda step: np.inf,
            "20 of 20 values are NaN or infinite instead of 0 of 80; mean of the finite values: none instead of 1",
        ),
    ],
)
def test_logged_values_that_are_not_finite_are_counted(inside: Any, words: str) -> None:
    loss = [inside(step) if 40 <= step < 60 else 1.0 for step in range(100)]
    (found,) = _compare(_store([[[1.0]]] * 100, loss=loss), 40, 59).logged
    assert found.message == words


def test_two_stores_that_number_their_taps_differently_are_compared_by_name() -> None:
    rng = np.random.default_rng(10)
    one = _store([[_normal(rng), _normal(rng, 100)] for _ in range(5)])
    two = Store(40_000_000)
    two.announce((TAPS[1], TAPS[0]))
    for step in range(5):
        block = block_of([sketch_of(_normal(rng, 100)), sketch_of(_normal(rng))])
        two.append(frame(step, stats_of(2, count=500), sketches=block))
    numbers = np.array([0, 1]), np.array([1, 0])
    assert (shares_apart(one.sample(), two.sample(), numbers) < 0.1).all()
    found = what_differs(Side(one, one.sample()), Side(two, two.sample()), lambda _: True)
    assert found.compared == 2
    assert all(layer.share < 0.1 for layer in found.layers)


def test_windows_have_the_steps_of_the_sample_in_order() -> None:
    rng = np.random.default_rng(11)
    sample = _store([[_normal(rng)] for _ in range(20)]).sample()
    windows = sample.windows(3, 8)
    assert [window.steps for window in windows] == [3] * 6
    assert [window.first for window in windows] == [0, 3, 6, 9, 12, 15]
    assert [window.steps for window in sample.windows(1, 4)] == [5] * 4
    assert Sample(()).windows(1, 4) == []


# -- REST and the page -------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Any:
    world = make_world()
    rng = np.random.default_rng(12)
    for name in ("one", "two"):
        run = world.runs.open(_info(name))
        assert run is not None
        rows = [[_normal(rng), _normal(rng, 8 if 40 <= step < 50 else 1), _normal(rng)] for step in range(100)]
        _fill(run.store, rows, loss=[float(40 <= step < 50) for step in range(100)])
    return world.client


def _info(name: str) -> Any:
    return make_info(name, name=f"run {name}")


def test_rest_returns_the_differences(client: Any) -> None:
    said = client.get("/api/v1/differences?run=one&from=40&to=49").json()
    assert said["inside"] == {"run": "one", "first": 40, "last": 49, "steps": 10}
    assert said["outside"] == {"run": "one", "first": 0, "last": 99, "steps": 90}
    assert said["layers"][0]["tap"]["label"] == "b output"
    assert said["logged"][0]["name"] == "loss"
    only = client.get("/api/v1/differences?run=one&from=40&to=49&match=a&limit=1").json()
    assert only["compared"] == 1
    before = client.get("/api/v1/differences?run=one&from=45&to=49&other_from=40&other_to=44").json()
    assert before["outside"]["steps"] == 5
    assert all(layer["share"] < 0.1 for layer in before["layers"])
    other = client.get("/api/v1/differences?run=one&from=40&to=49&other=two&other_from=40&other_to=49").json()
    assert other["outside"]["run"] == "two"
    assert all(layer["share"] < 0.1 for layer in other["layers"])
    table = client.get("/api/v1/differences?run=one&from=40&to=49&format=csv").text.splitlines()
    assert table[0].split(",")[-3:] == ['"share"', '"usual"', '"message"']


@pytest.mark.parametrize(
    ("query", "status"),
    [("other_from=5&other_to=4", 400), ("other=nothing", 404), ("from=5&to=4", 400), ("limit=0", 422)],
)
def test_rest_refuses_invalid_requests(client: Any, query: str, status: int) -> None:
    answer = client.get(f"/api/v1/differences?run=one&{query}")
    assert answer.status_code == status
    assert answer.json()["error"]


def _page(client: Any, query: str) -> str:
    answer = client.get(f"/runs/one/flow/changes{query}", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    return str(answer.text)


def test_the_page_shows_the_layers_of_the_steps_in_the_address(client: Any) -> None:
    page = _page(client, "?steps=40-49")
    assert "10 captured steps, 40 to 49" in page
    layers = re.findall(r'<h3><a href="[^"]+"[^>]*>([^<]+)</a>', page)
    assert layers[0] == "b"
    assert page.count('class="inside-area" d="M') == len(layers)
    assert "loss" in page


def test_the_page_compares_with_other_steps_and_other_runs(client: Any) -> None:
    assert "5 captured steps, 40 to 44" in _page(client, "?steps=45-49&beside=40-44")
    assert "100 captured steps, 0 to 99 of run two" in _page(client, "?steps=40-49&other=two")


def test_a_held_page_links_to_the_steps_before_and_after_it(client: Any) -> None:
    page = _page(client, "?step=40&kind=output")
    link = re.search(r'<a href="([^"]+)">Compare before and after step 40</a>', page)
    assert link is not None
    assert html.unescape(link[1]) == "runs/one/flow/changes?steps=40-99&beside=0-39&kind=output&step="
    split = _page(client, "?" + html.unescape(link[1]).partition("?")[2])
    assert "60 captured steps, 40 to 99" in split
    assert "40 captured steps, 0 to 39" in split
    for query in ("?step=0", "?steps=40-49"):
        assert "Compare before and after" not in _page(client, query)


def test_held_pages_and_pages_of_a_range_link_to_the_differences(client: Any) -> None:
    for query, is_hidden in (("", True), ("?steps=40-49", False), ("?step=45", False)):
        text = client.get(f"/runs/one{query}", headers={"Accept": "text/html"}).text
        link = re.search(r'<a class="differs"[^>]* href="([^"]+)"[^>]*>', text)
        assert link is not None
        assert link[1] == f"runs/one/flow/changes{query}"
        assert (" hidden>" in link[0]) is is_hidden


def test_a_rank_is_compared_with_other_ranks_and_with_all() -> None:
    world = make_world()
    fill_ranks(world.runs, world=3)
    open_run(world.runs, "alone")
    for run, others in (("4f2a-1", ["ranks-4f2a", "4f2a-0", "4f2a-2"]), ("ranks-4f2a", ["4f2a-0", "4f2a-1", "4f2a-2"])):
        address = f"/runs/{run}/flow/changes?other=4f2a-2"
        page = world.client.get(address, headers={"Accept": "text/html"}).text
        ranks = re.search(r'<optgroup label="Ranks">(.*?)</optgroup>', page, re.DOTALL)
        assert ranks is not None
        assert re.findall(r'<option value="([^"]+)"', ranks[1]) == others
        assert re.findall(r"<option[^>]* selected>([^<]+)</option>", ranks[1]) == ["Rank 2"]
        assert re.findall(r'<option value="([^"]+)">', page.partition("</optgroup>")[2])[:1] == ["alone"]
        assert f"{STEPS} captured steps, 0 to {STEPS - 1} of ddp rank 2" in page


def test_the_page_of_a_whole_run_shows_its_end_and_says_so(client: Any) -> None:
    assert "the last tenth of the run" in _page(client, "")


def test_the_page_explains_invalid_parameters(client: Any) -> None:
    assert "is not a range of steps" in _page(client, "?steps=40-49&beside=soon")
    assert "There is no run gone" in _page(client, "?steps=40-49&other=gone")


def test_the_page_says_that_nothing_differs(client: Any) -> None:
    page = _page(client, "?steps=60-69&beside=70-79&kind=output_grad&f=a")
    assert "No difference beyond chance" in page
    assert "There is nothing to compare" in _page(client, "?steps=40-49&beside=500-600")
