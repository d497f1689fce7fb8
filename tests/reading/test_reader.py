"""A run gives the same answers in its own process, from a saved file, and to a client of a server."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookcore.delivery.archive import load_into, read_archive
from hookcore.errors import HookcoreError
from hookcore.reading import Client, Reader, StoreReader
from hookcore.reading.answers import Tabular
from hookcore.records import KINDS, Snapshot, Tap
from hookcore.records.moments import SAMPLES_TYPE, Batch, SampleBlock
from hookcore.store import STAT_NAMES, Store
from hookcore_app.formats import json_of
from tests.archive_world import COVERAGE, HOOKS, MODULES, STORE_BYTES, Trainer, keep, kept_in, make_info
from tests.lanes import examples
from tests.serving import TOKEN, served

STEPS, TAPS, CHANNELS = 12, 9, 7
Readers = Mapping[str, Reader]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    folder = tmp_path_factory.mktemp("runs")
    trainer, (sink, store) = Trainer(np.random.default_rng(5)), keep(folder)
    sink.describe(MODULES, COVERAGE, HOOKS)
    for step in range(STEPS):
        for frame in trainer.next_step(TAPS if step == 0 else 0):
            sink.send(frame)
    sink.send(trainer.snapshot())
    tap = store.find_tap(CHANNELS)[1]
    for step in range(STEPS):
        values = np.random.default_rng(step).normal(size=5).astype(np.float32)
        sink.send(Snapshot(tap, step, 0.0, "float32", (5,), values))
    for first in (0, 4):  # two blocks, of which the second one has a step of the first
        rows = (Batch(3 - each, "Rows", (first + each, 9), (), 0, "") for each in range(4))
        listed = *rows, Batch(0, "", ("a",), (1,), 0, "")
        packed = np.frombuffer(SampleBlock(listed, 2, "").packed(), np.uint8)
        sink.send(Snapshot(Tap("", "output"), first + 3, 0.0, SAMPLES_TYPE, packed.shape, packed))
    text = np.frombuffer(b"some words", np.uint8)
    sink.send(Snapshot(Tap("words", "output"), 3, 0.0, "text/plain", text.shape, text))
    sink.close()
    reopened = Store(STORE_BYTES)
    load_into(reopened, read_archive(kept_in(folder)))
    with served(lost_after_s=10_000.0) as server, Client(server.url, TOKEN, run="one") as client:
        run = server.runs.open(make_info())
        assert run is not None
        run.swap(store, loaded=True)
        server.runs.open(make_info("newer", started_s=2.0))
        yield {"process": StoreReader(store, "one"), "file": StoreReader(reopened, "one"), "server": client}


maybe = st.none().__or__
steps = {"first": maybe(st.integers(0, 10)), "last": maybe(st.integers(10, 40))}
matches = maybe(st.sampled_from(["*", "m.*", "m.1", "re:[0-3]$", "nothing", "a", "type:Lin*", "m.* !is:nan"]))
kinds = st.sampled_from(KINDS)
stats = st.sampled_from([*STAT_NAMES, "p50", "p99.9"])
taps = st.integers(0, TAPS - 1) | st.sampled_from([str(TAPS - 1), "m.1 output_grad [past.1] call 1", "m.6 update"])
points = st.integers(1, 20)
texts = st.sampled_from(["event-0", "event-1", "none"])
INCIDENTS = ["nonfinite-2"]  # true for the values of this seed
QUESTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "steps": {},
    "nearest": {"step": st.integers(0, 40)},
    "samples": {"step": st.integers(0, 14)},
    "modules": {"match": matches, "taps": st.booleans()},
    "taps": {"match": matches, "kind": maybe(kinds)},
    "coverage": {"match": matches, "captured": maybe(st.booleans())},
    "hooks": {},
    "flow": {"step": maybe(st.integers(0, 20))},
    "model": {"step": maybe(st.integers(0, 20))},
    "series": {"tap": taps, "stat": stats, "points": points, **steps},
    "stats": {"tap": taps, "stats": st.lists(stats, min_size=1, max_size=4, unique=True), "points": points, **steps},
    "many_series": {"match": matches, "kind": maybe(kinds), "stat": stats, "points": points, **steps},
    "heatmap": {
        "kind": kinds,
        "stat": st.sampled_from(STAT_NAMES),
        "match": matches,
        "columns": points,
        "rows": points,
        **steps,
    },
    "histograms": {"tap": taps, "columns": points, "bins": st.integers(5, 30), **steps},
    "many_histograms": {
        "taps": st.lists(taps, max_size=4),
        "columns": points,
        "bins": st.integers(5, 30),
        **steps,
    },
    "precision": {
        "format": st.sampled_from(["e4m3", "e2m1", "fp16"]),
        "scale": st.sampled_from(["max", "p99.9"]),
        "match": matches,
        "kind": maybe(kinds),
        "limit": points,
        **steps,
    },
    "channels": {"tap": st.just(CHANNELS), "columns": points, "rows": points, **steps},
    "channel_taps": {"match": matches},
    "latest": {
        "match": matches,
        "kind": maybe(kinds),
        "stat": maybe(st.sampled_from(STAT_NAMES)),
        "sort": maybe(st.sampled_from(["rms", "-norm", "nonfinite"])),
        "limit": points,
        "taps": maybe(st.lists(taps, max_size=4)),
        **steps,
    },
    "scalars": {
        "names": st.sampled_from(["loss", ("loss", "ü/ж"), ()]),
        "points": points,
        "match": maybe(st.sampled_from(["lo*", "hookcore/*"])),
        **steps,
    },
    "events": {
        "name": maybe(texts),
        "severity": maybe(st.sampled_from(["info", "warning"])),
        "after": maybe(st.integers(0, 30)),
        "limit": points,
        **steps,
    },
    "incidents": {"rule": maybe(st.sampled_from(["nonfinite", "none"])), **steps},
    "incident": {"id": st.sampled_from(INCIDENTS)},
    "media": {"name": st.sampled_from([None, "words", "none"]), **steps},
    "media_content": {"number": st.just(0)},
    "snapshots": {"match": matches, "kind": maybe(kinds)},
    "tensor": {"number": st.just(7), "slice": st.sampled_from(["", "0", ":,1:", "...,0"])},
}
FEW = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("question", QUESTIONS)
@FEW
@given(data=st.data())
def test_a_query_has_the_same_answer_wherever_the_run_is_stored(readers: Readers, question: str, data: Any) -> None:
    asked = data.draw(st.fixed_dictionaries(QUESTIONS[question]))
    found = {name: getattr(reader, question)(**asked) for name, reader in readers.items()}
    first = found.pop("process")
    for other in found.values():
        assert type(other) is type(first)
        assert other == first if question == "steps" else json_of(other) == json_of(first)
        if isinstance(first, Tabular):
            pandas.testing.assert_frame_equal(other.to_pandas(), first.to_pandas(), check_dtype=False)


@FEW
@given(taps)
@example(TAPS - 1)
def test_a_tap_of_an_answer_names_itself(readers: Readers, tap: int | str) -> None:
    named = readers["process"].series(tap).tap
    assert named is not None
    for reader in readers.values():
        for name in (named, named.record, named.label, named.number):
            assert name is not None
            assert reader.series(name).tap == named


@pytest.mark.parametrize(
    ("question", "asked", "told"),
    [
        ("series", {"tap": "m.1 outputs"}, "m.1 output"),
        ("series", {"tap": 0, "stat": "mena"}, "did you mean 'mean'"),
        ("heatmap", {"stat": "mena"}, "did you mean 'mean'"),
        ("scalars", {"names": "los"}, "did you mean 'loss'"),
        ("taps", {"match": "re:("}, r"re:\("),
        ("latest", {"taps": [1, TAPS]}, f"unknown tap number {TAPS}"),
        ("tensor", {"number": 8}, "no snapshot 8"),
        ("tensor", {"number": 7, "slice": "9"}, "slice='9'"),
    ],
)
def test_a_wrong_name_is_an_error_that_lists_valid_names(
    readers: Readers, question: str, asked: dict[str, Any], told: str
) -> None:
    for reader in readers.values():
        with pytest.raises(HookcoreError, match=told):
            getattr(reader, question)(**asked)


@pytest.mark.parametrize("reader", [StoreReader, Client])
def test_every_reader_has_every_query_with_the_same_arguments_types_and_defaults(reader: type[Reader]) -> None:
    questions = {name: value for name, value in vars(Reader).items() if not name.startswith("_")}
    assert set(QUESTIONS) == set(questions)
    for name, question in questions.items():
        wanted, found = inspect.signature(question), inspect.signature(getattr(reader, name))
        own = list(found.parameters.values())
        assert own[: len(wanted.parameters)] == list(wanted.parameters.values()), name
        assert found.return_annotation == wanted.return_annotation, name
