"""A server whose data strains the layout: long names and errors, 2,000 modules, 30 runs, and a run without steps."""

from __future__ import annotations

import itertools
import json
import urllib.parse
import urllib.request
from typing import Any, Final

import numpy as np

from hookcore.records import Coverage, Event, Failure, Frame, HookRecord, ModuleRecord, SketchBlock, Snapshot, Tap, wire
from hookcore.records.sketch import bins_of
from hookcore.records.vocabulary import FIGURE_TYPE, TABLE_TYPE, TEXT_TYPE
from tests.build import frame, make_info, stats_of
from tests.serving import BATCH

from .site import Site

STEPS: Final = 60
RUNS: Final = 30
MODULES: Final = 2_000
BAD_AT: Final = 40
LONG: Final = ".".join(("transformer", *(f"a_block_with_a_descriptive_name_{each}" for each in range(6)), "attention"))
LONGEST: Final = "w" * 200  # can't be wrapped
TYPE: Final = "RotaryGroupedQueryAttentionWithSlidingWindowAndSinks"
ERROR: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    f"of which 1.02 GiB is free. {'/home/someone/experiments/checkpoints/' * 3}latest.pt "
    f"0x{'deadbeef' * 20} " + "Including non-PyTorch memory, this process has 78.07 GiB memory in use. " * 4
)


def fill(site: Site) -> None:
    """Send all runs."""
    pin(site, "loss", "loss")
    pin(site, LONGEST[:100], "loss")
    pin(site, LONG[:100], f"validation/a_metric_with_a_long_name/{LONG}/1")
    send(
        site,
        "long",
        [*(f"{LONG}.{each}.projection" for each in range(6)), LONGEST],
        name=f"{'many words ' * 16}{'x' * 60}",
    )
    send(site, "many", [module_of(each) for each in range(MODULES)])
    post(site, wire.Batch(run=make_info("bare", name="no step yet")))
    for each in range(RUNS):
        lr = 3e-4 * (each + 1)
        info = make_info(
            f"sweep-{each}",
            name=f"sweep-{each}-lr-{lr:g}-with-warmup-and-cosine-decay-and-a-long-tail-of-words",
            config={"lr": lr, "optimizer": "AdamW" * 8, "data.path": "/data/" * 20},
            tags=("sweep", f"a-tag-with-a-long-name-{each}"),
            group="a group with a name of several words",
            notes="What was tried, and why it did not work out in the end. " * 5,
            started_s=1.7e9 + each,
        )
        one = frame(0, stats_of(1, 1.0, nan=0, inf=0), scalars={"loss": 2.5})
        items = (wire.frame_item(0, one), wire.EndItem(1, 0))
        post(site, wire.Batch(run=info, taps=(Tap("a", "output"),), items=items))


def module_of(number: int) -> str:
    """Return the path of one of many modules, whose long names differ only in the middle."""
    return f"language_model.decoder_with_cross_attention.layers.{number // 8}.attention_{number % 8}.query_projection"


def send(site: Site, run: str, paths: list[str], name: str = "") -> None:
    """Send a run that crashed. If it has a name, all its texts are long, and it has more kinds."""
    info = make_info(
        run,
        name=name or run,
        script=f"/home/someone/{'experiments/' * 8}train.py",
        host="a-host-of-a-cluster." * 4 + "net",
        config={"a.setting.with.a.long.name." * 3: "a value of several words " * 6, "lr": 1e-3},
        tags=("a-tag-that-is-longer-than-others",),
        notes=ERROR,
        started_s=1.7e9,
    )
    kinds: tuple[Any, ...] = ("output", "output_grad", *(("param", "update") if name else ()))
    taps = tuple(Tap(path, kind, "weight" if kind in ("param", "update") else "") for path in paths for kind in kinds)
    post(site, wire.Batch(run=info, description=describe(paths, TYPE if name else "Linear")))
    numbers = itertools.count()
    for first in range(0, STEPS, 5):
        steps = range(first, first + 5)
        frames = [wire.frame_item(next(numbers), make_frame(step, len(taps), bool(name))) for step in steps]
        media = [wire.snapshot_item(next(numbers), each) for each in (make_media(first) if name else [])]
        failure = Failure("crashed", STEPS - 1, ERROR, f"Traceback\n{ERROR}\n" * 4)
        end = [wire.EndItem(next(numbers), STEPS - 1, failure)] if first + 5 == STEPS else []
        announced: dict[str, Any] = {"taps": taps} if first == 0 else {"taps_from": len(taps)}
        post(site, wire.Batch(run=info, items=(*frames, *media, *end), **announced))


def make_media(step: int) -> list[Snapshot]:
    """Return media under long names: a text, a table, and an item that no page can show."""
    table = {"columns": [LONG, "b"], "rows": [[ERROR, LONGEST], [1, None]], "total": 1234567}
    logged = (
        (f"samples/{LONG}", TEXT_TYPE, f"{ERROR}\n{LONGEST}"),
        (LONGEST, TABLE_TYPE, json.dumps(table)),
        ("curve", FIGURE_TYPE, json.dumps({"data": [{"y": [1, 3, 2]}], "layout": {}})),
        ("clips/sound", "audio/wav", "RIFF"),
    )
    return [
        Snapshot(Tap(name, "output"), step, 1.7e9, media_type, (len(said),), np.frombuffer(said.encode(), np.uint8))
        for name, media_type, said in logged
    ]


def describe(paths: list[str], kind: str) -> wire.Description:
    """Return modules of one class, and hooks on the first ones."""
    source, spy = f"{'models/' * 12}net.py:1234", f"{TYPE}.observe.<locals>.spy"
    modules = tuple(
        ModuleRecord(each, kind, None, 10**9, 10**9, (), (("weight", (8192, 8192)),), source=source) for each in paths
    )
    reasons = "", f"inside the compiled region {LONGEST}, whose boundary is captured"
    coverage = tuple(
        Coverage(each, kind, True, ("output", "output_grad"), reasons[place % 2]) for place, each in enumerate(paths)
    )
    hooks = tuple(
        HookRecord("module", each, "forward", spy, f"{'libs/' * 20}spy.py:3", False, 7, ("prepend",), False, ERROR)
        for each in paths[:3]
    )
    return wire.Description(1, modules, coverage, hooks)


def make_frame(step: int, rows: int, is_long: bool) -> Frame:
    """Return a frame with a histogram of each tensor, and NaN at the end."""
    bad = (np.arange(rows) < 2) & (step >= BAD_AT)
    counts = np.full(rows, 8, np.uint32)
    block = SketchBlock(np.arange(rows + 1, dtype=np.uint32), bins_of(np.full(rows, 1.0 + step)), counts)
    scalars = {"loss": 1e-5 * (STEPS - step)}
    if is_long:
        scalars |= {f"validation/a_metric_with_a_long_name/{LONG}/{each}": 1234567.891 for each in range(5)}
    events = (Event(step, 1.7e9, "note", ERROR, "error", LONG),) if is_long and step in (7, 30) else ()
    stats = stats_of(rows, 1.0 + step, count=8, nan=8 * bad, inf=0)
    return frame(step, stats, sketches=block, scalars=scalars, events=events, time_s=1.7e9 + step)


def pin(site: Site, name: str, scalar: str) -> None:
    """Pin the chart of a scalar to the board."""
    chart = json.dumps({"name": name, "path": "scalars", "query": urllib.parse.urlencode({"name": scalar})})
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{site.url}/api/v1/board", chart.encode(), headers, method="PUT")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200


def post(site: Site, batch: wire.Batch) -> None:
    """Send a batch that must be accepted."""
    asked = urllib.request.Request(f"{site.url}/api/v1/ingest", wire.encode(batch), BATCH)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
