"""`hookcore import`: logs that TensorBoard's, W&B's, and Trackio's own libraries write, as runs of a server."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter
from wandb.proto.wandb_internal_pb2 import Record

from hookcore.commands.intake import ImportedRun, row_of_buckets
from hookcore.config import Settings
from hookcore.reading import Client
from hookcore.reading.answers import Run
from hookcore.records import STAT_COLUMN
from hookcore.records.sketch import RELATIVE_ERROR, Sketch
from hookcore_app.cli import main
from tests.serving import TOKEN, Served, served

STATS = tuple(STAT_COLUMN)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as made:
        yield made


@pytest.fixture
def import_logs(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, Client]]:
    def import_logs(tool: str, source: Path | str, *flags: str) -> tuple[str, Client]:
        monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
        assert main(["import", tool, str(source), "--server", server.url, *flags]) == 0
        told = capsys.readouterr().out
        run = next(line.rpartition("/")[2] for line in told.splitlines() if "/runs/" in line)
        return told, Client(server.url, TOKEN, run=run)

    return import_logs


def about(told: str, client: Client) -> Run:
    """Return the description of the run that the command has named."""
    return client.run(next(line.rpartition("/")[2] for line in told.splitlines() if "/runs/" in line))


def points_of(client: Client, name: str) -> dict[int, float]:
    series = client.scalars(name)[name]
    return dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True))


def event_file(folder: Path) -> Path:
    (found,) = folder.glob("*tfevents*")
    return found


def test_what_tensorboard_reads_of_its_log_is_what_is_imported(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    random = np.random.default_rng(0)
    given = {step: random.standard_normal(1000) for step in (0, 10)}
    writer = SummaryWriter(str(tmp_path / "wide"))
    for step in range(20):
        writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_scalar("accuracy", float("nan") if step == 7 else step / 20, step)
    for step, values in given.items():
        writer.add_histogram("layer.weight", values, step)
        writer.add_image("sample", random.random((3, 8, 8)), step)
        writer.add_text("note", f"step {step}: **bold**", step)
    writer.close()
    told, client = import_logs("tensorboard", tmp_path / "wide")
    assert "wide: 40 scalar values, 2 histograms, 2 images, 2 texts" in told
    twin = EventAccumulator(str(tmp_path / "wide"), size_guidance={"images": 0, "tensors": 0, "histograms": 0})
    twin.Reload()
    for name in ("loss", "accuracy"):
        expected = {each.step: each.value for each in twin.Scalars(name)}
        assert points_of(client, name) == pytest.approx(expected, nan_ok=True)
    kept = {media.step: client.media_content(media.number) for media in client.media("sample")}
    assert kept == {each.step: each.encoded_image_string for each in twin.Images("sample")}
    texts = {media.step: client.media_content(media.number) for media in client.media("note/text_summary")}
    assert texts == {step: f"step {step}: **bold**".encode() for step in given}
    (tap,) = client.taps(kind="probe").taps
    for stat, of in {"mean": np.mean, "rms": lambda x: np.sqrt(np.mean(x * x)), "min": np.min, "max": np.max}.items():
        series = client.series(tap, stat)
        expected = {step: float(of(values)) for step, values in given.items()}
        assert dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True)) == pytest.approx(
            expected, rel=1e-6
        )
    assert int(client.histograms(tap).counts.sum()) == 2000
    assert about(told, client).started_s == pytest.approx(min(each.wall_time for each in twin.Scalars("loss")), abs=5)


def test_each_folder_is_a_run_of_one_group_with_its_configuration(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    for name in ("a", "b"):
        writer = SummaryWriter(str(tmp_path / "sweep" / name))
        writer.add_hparams({"lr": 0.1, "optimizer": "sgd"}, {"accuracy": 0.5}, run_name=".")
        writer.close()
    told, client = import_logs("tensorboard", tmp_path / "sweep", "--tags", "old")
    runs = {run.name: run for run in client.runs() if run.group == "sweep"}
    assert set(runs) == {"a", "b"}
    run = about(told, client)
    assert (run.config, tuple(run.tags), run.host) == ({"lr": 0.1, "optimizer": "sgd"}, ("old",), "")
    assert run.facts["format"] == "TensorBoard"


def tensor(values: Any, texts: tuple[bytes, ...] = ()) -> TensorProto:
    array = np.asarray(values, np.float32)
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in array.shape])
    if texts:
        return TensorProto(dtype=7, string_val=list(texts))
    return TensorProto(dtype=1, tensor_shape=shape, tensor_content=array.tobytes())


def test_logs_of_tensorflow_2_say_in_the_first_value_of_a_tag_what_it_means(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    writer = EventFileWriter(str(tmp_path / "log"))
    buckets = [[-1.0, 0.0, 30.0], [0.0, 2.0, 70.0]]
    values = {
        "scalars": tensor(0.5), "histograms": tensor(buckets), "images": tensor((), (b"8", b"8", PNG)),
        "text": tensor((), (b"hello",)), "pr_curves": tensor(1.0),
    }  # fmt: skip
    for step in range(3):
        event = Event(wall_time=100.0 + step, step=step)
        for plugin, value in values.items():
            about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if not step else None
            event.summary.value.add(tag=f"of {plugin}", tensor=value, metadata=about)
        writer.add_event(event)
    writer.close()
    told, client = import_logs("tensorboard", tmp_path / "log")
    assert "3 scalar values, 3 histograms, 3 images, 3 texts" in told
    assert "not imported: values of the plugin pr_curves (3)" in told
    assert points_of(client, "of scalars") == {0: 0.5, 1: 0.5, 2: 0.5}
    (tap,) = client.taps(kind="probe").taps
    assert client.series(tap, "mean").mean.tolist() == pytest.approx([0.55] * 3)  # of the middles of the buckets


def scalars_of(folder: Path, steps: int = 50) -> Path:
    writer = SummaryWriter(str(folder))
    for step in range(steps):
        writer.add_scalar("loss", float(step), step)
    writer.close()
    return event_file(folder)


def starts_of(content: bytes) -> list[int]:
    """Return the places of the records of an event file."""
    starts, at = [], 0
    while at < len(content):
        starts.append(at)
        at += 16 + struct.unpack_from("<Q", content, at)[0]
    return starts


def test_damaged_records_of_tensorboard_are_counted_and_named_and_the_rest_is_imported(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    path = scalars_of(tmp_path / "log")
    content = bytearray(path.read_bytes())
    starts = starts_of(content)
    content[starts[11] + 20] ^= 255  # of the value of step 10: the first record is the version
    path.write_bytes(content[:-3])
    told, client = import_logs("tensorboard", tmp_path / "log")
    assert sorted(points_of(client, "loss")) == [step for step in range(49) if step != 10]
    assert f"a damaged record of {path.name} at byte {starts[11]:,}: its checksum is wrong (1)" in told
    assert f"{path.name} is cut off at byte {starts[-1]:,} (1)" in told
    events = [event.message for event in client.events(name="import-incomplete").events]
    assert len(events) == 2
    assert all(event.startswith("Not imported: ") for event in events)
    assert {event.severity for event in client.events(name="import-incomplete").events} == {"warning"}


def test_after_a_damaged_length_the_rest_of_an_event_file_is_given_up_by_name(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    path = scalars_of(tmp_path / "log")
    content = bytearray(path.read_bytes())
    content[starts_of(content)[21]] ^= 1
    path.write_bytes(content)
    told, client = import_logs("tensorboard", tmp_path / "log")
    assert sorted(points_of(client, "loss")) == list(range(20))
    assert "has a damaged length, so what follows can't be read" in told


def test_a_log_with_one_tag_after_the_other_is_imported_in_the_order_of_its_steps(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    writer = SummaryWriter(str(tmp_path / "log"))
    for name in ("a", "b"):
        for step in range(500):
            writer.add_scalar(name, float(step), step)
    writer.close()
    told, client = import_logs("tensorboard", tmp_path / "log")
    assert "not imported" not in told
    assert points_of(client, "b") == {step: float(step) for step in range(500)}


def test_a_resumed_training_replaces_the_steps_that_it_repeats(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    for first, suffix, value in ((0, ".1", 1.0), (30, ".2", 2.0)):
        writer = SummaryWriter(str(tmp_path / "log"), filename_suffix=suffix)
        for step in range(first, first + 50):
            writer.add_scalar("loss", value, step)
        writer.close()
    files = sorted((tmp_path / "log").glob("*tfevents*"), key=lambda path: path.suffix)
    for place, path in enumerate(files):  # named by the second in which they began
        path.rename(path.with_name(f"events.out.tfevents.{100 + place}.host"))
    _, client = import_logs("tensorboard", tmp_path / "log")
    assert points_of(client, "loss") == {step: 1.0 if step < 30 else 2.0 for step in range(80)}


def test_values_that_come_after_those_of_much_later_steps_are_counted(tmp_path: Path) -> None:
    settings = Settings.of({}, server=None, keep=tmp_path, name="small")
    with ImportedRun(settings, 0.0, {}, window=5_000) as run:
        for step in range(1000):
            run.add_scalar(step, 0.0, "loss", 1.0)
        run.add_scalar(3, 0.0, "late", 1.0)
        run.add_scalar(-1, 0.0, "negative", 1.0)
    assert run.found == {"scalar value": 1000}
    assert run.missing == {
        "values that came after those of much later steps, such as 'late'": 1,
        "values of a step below 0 or too large, such as 'negative'": 1,
    }


# W&B and Trackio

WANDB = """
import io, wandb, numpy as np
import plotly.graph_objects as go
from PIL import Image
noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8))
moving = io.BytesIO()
noise.save(moving, "gif", save_all=True, append_images=[noise.rotate(90)])
run = wandb.init(project="digits", name="wide", config={"lr": 0.1, "model": {"width": 8}}, tags=["a"], notes="hello",
                 group="sweep", settings=wandb.Settings(console="off"))
for step in range(400):
    row = {"loss": 1 / (step + 1), "of": {"inside": step}}
    if step % 200 == 0:
        row["h"] = wandb.Histogram(np_histogram=([1, 2, 1], [-1.0, 0.0, 1.0, 2.0]))
        row["image"] = wandb.Image(np.zeros((4, 4, 3), np.uint8))
        row["table"] = wandb.Table(columns=["a", "b"], data=[[1, "x"]])
        row["page"] = wandb.Html("<p>no</p>")
        row["photo"] = wandb.Image(noise, file_type="jpg", caption="seen")
        row["moving"] = wandb.Video(io.BytesIO(moving.getvalue()), format="gif")
        row["figure"] = go.Figure(go.Scatter(y=[1, 3, 2]))
        row["bad"] = float("nan")
    run.log(row)
run.finish()
"""


@pytest.fixture(scope="module")
def wandb_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wandb")
    given = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true",
        "HOME": str(folder),
    }
    subprocess.run([sys.executable, "-c", WANDB], env=given, check=True, capture_output=True)
    return folder


def test_a_log_that_wandb_has_written_is_imported_with_its_media(
    wandb_log: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    told, client = import_logs("wandb", wandb_log)
    assert "wide: 802 scalar values, 2 histograms, 6 images, 2 tables, 2 figures" in told
    assert "not imported: values of type html-file, such as 'page' (2)" in told
    assert "not imported: captions of images (2)" in told
    run = about(told, client)
    assert (run.name, run.group, run.notes, tuple(run.tags)) == ("wide", "sweep", "hello", ("a",))
    assert run.config == {"lr": 0.1, "model.width": 8}
    assert points_of(client, "loss") == pytest.approx({step: 1 / (step + 1) for step in range(400)})
    assert points_of(client, "of.inside")[399] == 399
    (table, _) = client.media("table")
    assert json.loads(client.media_content(table.number)) == {"columns": ["a", "b"], "rows": [[1, "x"]], "total": 1}
    (tap,) = client.taps(kind="probe").taps
    assert client.series(tap, "count").mean.tolist() == [4, 4]
    assert client.media_content(client.media("image")[0].number).startswith(b"\x89PNG")
    assert {client.media(name)[0].type for name in ("photo", "moving")} == {"image/jpeg", "image/gif"}
    (figure, _) = client.media("figure")
    assert json.loads(client.media_content(figure.number))["data"][0]["y"] == [1, 3, 2]


def test_what_wandb_has_sampled_of_the_machine_becomes_the_series_of_the_machine(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    def sample(second: int, **values: float) -> Record:
        record = Record()
        record.stats.timestamp.seconds = second
        for key, value in values.items():
            record.stats.item.add(key=key.replace("_of_", "."), value_json=json.dumps(value))
        return record

    def row(step: int) -> Record:
        record = Record()
        record.history.step.num = step
        record.history.item.add(key="loss", value_json="1.0")
        return record

    machine = Record()
    machine.environment.cpu_count_logical = 8
    content = b":W&B\xe1\xbe\x00"
    gpu = {"gpu_of_0_of_gpu": 50.0, "gpu_of_0_of_memoryAllocatedBytes": 2e9, "gpu_of_0_of_smClock": 1000.0}
    for record in (
        Record(run={"run_id": "1", "display_name": "sampled"}),
        sample(90, cpu=99.0),  # before the number of cores is known
        machine,
        row(0),
        sample(100, cpu=25.0, network_of_recv=1000.0, disk_of_sda_of_in=0.0, disk_of_sdb_of_in=1.0, **gpu),
        sample(102, cpu=75.0, network_of_recv=5000.0, disk_of_sda_of_in=1.0, disk_of_sdb_of_in=4.0, **gpu),
        row(1),
        sample(104, network_of_recv=100.0, memory_percent=25.0, proc_of_memory_of_availableMB=300.0),
        row(2),
    ):
        data = record.SerializeToString()
        content += struct.pack("<IHB", zlib.crc32(b"\x01" + data), len(data), 1) + data
    assert len(content) < 32768  # one block
    (tmp_path / "run-1.wandb").write_bytes(content)
    told, client = import_logs("wandb", tmp_path)
    names = ("cpu/process", "network/received", "disk/read", "memory/machine", "gpu0/utilization", "gpu0/memory")
    points = {name: points_of(client, f"hookcore/system/{name}") for name in names}
    assert points == {
        "cpu/process": {1: 4.0},  # 25 and 75 % of 8 cores
        "network/received": {1: 2000.0},  # a second; a counter that begins again says nothing
        "disk/read": {1: 2.0 * 2**20},
        "memory/machine": {2: 100.0 * 2**20},  # a quarter, if 300 MB are the other three
        "gpu0/utilization": {1: 50.0},
        "gpu0/memory": {1: 2e9},
    }
    assert "system metrics that hookcore has no series for: cpu, gpu.0.smClock (3)" in told
    request = Request(f"{client.url}/runs/{about(told, client).id}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=30) as page:
        assert "This run was imported from W&amp;B. Its log has no layers." in page.read().decode()
    assert {event.severity for event in client.events(name="import-incomplete").events} == {"info"}  # no problem


def test_a_damaged_block_of_wandb_is_named_and_the_blocks_after_it_are_imported(
    wandb_log: Path, tmp_path: Path, import_logs: Callable[..., tuple[str, Client]]
) -> None:
    (path,) = wandb_log.rglob("run-*.wandb")
    content = bytearray(path.read_bytes())
    assert len(content) > 3 * 32768
    content[32768 + 100] ^= 255
    (tmp_path / path.name).write_bytes(content)
    told, client = import_logs("wandb", tmp_path)
    assert f"a damaged record of {path.name} at byte 32," in told
    steps = points_of(client, "loss")
    assert 100 < len(steps) < 400
    assert 0 in steps
    assert 399 in steps
    assert "images whose file is missing or above 1,048,576 bytes" in told


TRACKIO = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
    config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
CREATE TABLE system_metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
"""  # as Trackio 0.43.0 makes them; the rows below are as it writes them, too


def trackio_project(folder: Path) -> Path:
    image = {"_type": "trackio.image", "file_path": "digits/wide/0/x.png", "caption": "c"}
    outside = {"_type": "trackio.image", "file_path": "../../secret.png"}
    rows = [
        {"loss": 1.0, "image": image, "outside": outside, "bad": "NaN", "note": "some text", "of": {"a": 1}},
        {"loss": 0.5, "h": {"_type": "trackio.histogram", "bins": [0, 1, 2], "values": [3, 4]}},
        {"table": {"_type": "trackio.table", "_value": [{"a": 1, "b": "x"}]}, "list": [1]},
    ]
    (folder / "trackio/media/digits/wide/0").mkdir(parents=True)
    (folder / "trackio/media/digits/wide/0/x.png").write_bytes(PNG)
    (folder / "secret.png").write_bytes(PNG)
    path = folder / "trackio/digits.db"
    database = sqlite3.connect(path)
    database.executescript(TRACKIO)
    add = "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES ('1', ?, 'wide', ?, ?)"
    for step, row in enumerate(rows):
        database.execute(add, (f"2026-11-29T23:26:3{step}.363976+00:00", step, json.dumps(row).encode()))
    database.execute(add, ("2026-11-29T23:26:39.363976+00:00", 3, b"{damaged"))
    config = json.dumps({"lr": 0.1, "_Username": None}).encode()
    database.execute("INSERT INTO configs VALUES (1, '1', 'wide', ?, '')", (config,))
    database.execute("INSERT INTO system_metrics VALUES (1, '1', '', 'wide', '{}', NULL, NULL)")
    database.commit()
    database.close()
    return path


def test_a_project_of_trackio_is_imported_by_its_name(
    tmp_path: Path, import_logs: Callable[..., tuple[str, Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio_project(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    told, client = import_logs("trackio", "digits")
    assert points_of(client, "loss") == {0: 1.0, 1: 0.5}
    assert points_of(client, "of.a") == {0: 1.0}
    assert np.isnan(points_of(client, "bad")[0])
    run = about(told, client)
    assert (run.group, run.config) == ("digits", {"lr": 0.1})
    assert run.started_s == pytest.approx(1795994790.36, abs=0.1)
    (image,) = client.media("image")
    assert client.media_content(image.number) == PNG
    assert not client.media("outside")  # a file that isn't in the folder of its media
    for what in (
        "rows that can't be read (1)",
        "records of system metrics (1)",
        "values of type list, such as 'list' (1)",
    ):
        assert f"not imported: {what}" in told


@pytest.mark.parametrize(
    ("tool", "content", "sentence"),
    [
        ("tensorboard", "", "has no event files"),
        ("wandb", "", "has no run-*.wandb"),
        ("trackio", "", "doesn't exist"),
        ("wandb", "run-1.wandb", "is no log of W&B"),
        ("trackio", "x.db", "can't be read as a database of Trackio"),
    ],
)
def test_what_is_no_log_is_an_error_that_says_what_to_give(
    tool: str, content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content:
        (tmp_path / content).write_bytes(b"something else, and quite long" * 100)
    source = tmp_path / content if content else tmp_path
    assert main(["import", tool, str(source), "--server", "none", "--keep", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err


def test_what_a_server_did_not_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hookcore.commands.intake.PATIENCE_S", 0.2)
    monkeypatch.setenv("HOOKCORE_HOME", str(tmp_path / "home"))
    scalars_of(tmp_path / "log")
    main(["import", "tensorboard", str(tmp_path / "log"), "--server", "http://127.0.0.1:9"])
    assert "not imported: frames that the server didn't take" in capsys.readouterr().out


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_a_histogram_keeps_its_values_within_its_buckets(values: list[float], buckets: int) -> None:
    low, high = min(values), max(values)
    edges = np.linspace(low, high if high > low else low + 1, buckets + 1)
    counts, _ = np.histogram(values, edges)
    row = row_of_buckets(edges, counts.astype(float), (float(np.sum(values)), float(np.sum(np.square(values)))))
    assert row is not None
    assert int(row.counts.sum()) == counts.sum() == row.stats[STAT_COLUMN["count"]]
    assert row.stats[STAT_COLUMN["mean"]] == pytest.approx(float(np.mean(values)), rel=1e-9, abs=1e-9)
    sketch, width = Sketch.of_bins(row.bins, row.counts), float(np.diff(edges).max())
    for share in (0.25, 0.5, 0.9):
        true = float(np.quantile(values, share, method="inverted_cdf"))
        found = float(sketch.quantiles(share))
        assert abs(found - true) <= width * (1 + RELATIVE_ERROR) + abs(true) * RELATIVE_ERROR * 1.01 + 1e-30
