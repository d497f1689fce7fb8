"""Every answer about a run is the same, whether its trainer sends to a server, or to ClickHouse through a collector."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pytest
from anyio.from_thread import start_blocking_portal

from hookcore.records import STATS, Event, ModuleRecord, Names, SketchBlock, Snapshot, Tap
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.moments import MOMENT_TYPE, WEIGHT, Moment, Noted, When
from hookcore.records.wire import Batch, Description, EndItem, Item, Place, RunInfo, frame_item, snapshot_item
from hookcore_app.clickhouse import reading
from hookcore_app.clickhouse.cluster import entry
from tests.build import frame
from tests.clickhouse.contract_table import (
    EXCEPTIONS,
    OF_A_RUN,
    OF_SEVERAL,
    PAGES,
    PAGES_OF_A_RUN,
    REFUSED,
    RUNS,
    STREAMED,
    SUBSCRIBED,
    WRITTEN,
)
from tests.clickhouse.nodes import PASSWORD, Cluster
from tests.clickhouse.world import Collector, new_database
from tests.live_world import Message, blocks_of
from tests.serving import World, make_world, routes_of
from tests.waiting import wait_for

STEPS: Final = 300
MODULES: Final = ("", "embed", "layers.0", "layers.1", "head")
TAPS: Final = (
    *(Tap(module, kind) for module in MODULES[1:] for kind in ("output", "output_grad")),
    Tap("head.weight", "param_grad"),
    Tap("", "probe"),
)
PROBE: Final = len(TAPS) - 1
MOMENTS: Final[dict[int, When]] = {0: "begun", 150: "saved", STEPS - 1: "ended"}
KEY: Final = "a secret of the trainer"
pytestmark = pytest.mark.slow


# -- the data ----------------------------------------------------------------------------------------------------------


def info_of(run: str, place: Place | None = None) -> RunInfo:
    return RunInfo(
        id=run,
        key=KEY,
        name=f"the run {run}",
        started_s=1_700_000_000.0,
        host="box",
        config={"lr": 0.1},
        facts={"optimizer": "AdamW"},
        tags=("sweep",),
        place=place,
    )


def description() -> Description:
    return Description(1, tuple(ModuleRecord(path, "Linear", path.rpartition(".")[0] or None) for path in MODULES))


def batches_of(run: str, seed: int, place: Place | None = None, ends: bool = True) -> Iterator[Batch]:
    """Yield a training with non-finite values, steps in several parts, rare taps, events, and snapshots."""
    random, info = np.random.default_rng(seed), info_of(run, place)
    items: list[Item] = []
    for step in range(STEPS):
        items += _items_of(random, len(items), step)
        if step in MOMENTS:
            items.append(snapshot_item(len(items), _moment_of(seed, step)))
    if ends:
        items.append(EndItem(len(items), STEPS - 1))
    about: dict[str, Any] = {"taps": TAPS, "description": description()}
    for first in range(0, len(items), 100):
        yield Batch(run=info, items=tuple(items[first : first + 100]), **about)
        about = {"taps_from": len(TAPS)}


def _moment_of(seed: int, step: int) -> Snapshot:
    """Return the state of a training: each begins with what the one with the seed before it saved."""
    saved = seed - 1 if step == 0 else seed if step == 150 else seed + 100
    held = tuple(
        Noted("head.weight", what, "float32", 64, f"{what} {saved}", 1.5) for what in (WEIGHT, "exp_avg", "exp_avg_sq")
    )
    generators = {"torch": f"drawn until {step} of {seed}"}
    data = np.frombuffer(Moment(MOMENTS[step], 0, "AdamW", (0.1,), generators, None, held, 0).packed(), np.uint8)
    return Snapshot(Tap("", "state"), step, 1000.0, MOMENT_TYPE, data.shape, data)


def _items_of(random: np.random.Generator, number: int, step: int) -> Iterator[Item]:
    numbers = np.array([tap for tap in range(PROBE) if tap != 8 or step % 7 == 0])
    rows = random.lognormal(0, 0.2, (len(numbers), len(STATS)))
    rows[:, :4], rows[:, 10:12] = (64, 0, 0, 3), (1, 64)
    if step in (120, 121, 122, 250):
        rows[2:4, [1, 4, 8]] = 2, math.nan, math.nan
    bins = np.sort(random.choice(np.arange(1900, 2200), (len(numbers), 3)), axis=1).astype(np.uint16)
    bins += np.arange(3, dtype=np.uint16)  # ascending
    start = np.arange(len(numbers) + 1, dtype=np.uint32) * 3
    block = SketchBlock(start, bins.ravel(), np.tile(np.array([20, 20, 24], np.uint32), len(numbers)))
    scalars = {"loss": 2.0 / (step + 1), **({"accuracy": step / STEPS} if step % 50 == 0 else {})}
    scalars |= {"hookcore/system/cpu": 50.0} if step % 20 == 0 else {}
    others: dict[str, Any] = {"elapsed_s": 0.5, "micro_batches": 2}
    if step == 0:
        calls = FlowCall("embed"), FlowCall("layers.0", fed_by=(0,)), FlowCall("head", fed_by=(1,))
        others |= {"labels": {"dtype": "float32"}, "flow": Flow(0, calls)}
    if step % 40 == 3:
        others["events"] = (Event(step, 1000.0 + step, "skipped", f"event of step {step}", "warning"),)
    yield frame_item(number, frame(step, rows, numbers=numbers, sketches=block, scalars=scalars, **others))
    if step % 60 == 7:
        again = rows[:2] * 2
        again[:, STATS.index("sketched")] = 0  # this part has no histograms
        more = frame(step, again, numbers=numbers[:2], scalars={"loss": 1.5})
        yield frame_item(number + 1, more)
        values = random.normal(size=(4, 6)).astype(np.float32)
        yield snapshot_item(number + 2, Snapshot(TAPS[0], step, 1000.0, "float32", (4, 6), values))
        yield snapshot_item(number + 3, Snapshot(TAPS[PROBE], step, 1000.0, "float32", (6,), values[0]))
        text = np.frombuffer(f"said in step {step}".encode(), np.uint8)
        yield snapshot_item(number + 4, Snapshot(Tap("words", "output"), step, 1000.0, "text/plain", text.shape, text))
        maps = random.random((2, 3, 3)).astype(np.float32)
        maps /= maps.sum(axis=-1, keepdims=True)
        names = Names((("a", "b", "c"),), shared=True, labels=("cat", "dog"))
        yield snapshot_item(number + 5, Snapshot(TAPS[2], step, 1000.0, "float32", maps.shape, maps, names=names))
        alike = values.T @ values
        batch = Tap("embed", "output", "similarity of samples ab12")
        yield snapshot_item(number + 6, Snapshot(batch, step, 1000.0, "float32", alike.shape, alike))


# -- the servers -------------------------------------------------------------------------------------------------------


@dataclass
class Servers:
    """A server with everything in memory, and others that read from ClickHouse."""

    memory: World
    followed: World  # it was running when the data arrived
    opened: World  # it started later
    long: World  # it started later, and treats the runs as long ones
    written: list[tuple[Any, Any]] = field(default_factory=list)  # the answers of the first two to each edit


def unhurried() -> float:
    """Return the time for servers, for which no trainer is ever late, however slow this machine is."""
    return 0.0


def _has_all(world: World) -> bool:
    every = world.runs.every()
    return len(every) == 5 and all(run.loaded and run.end.step is not None for run in every)


@pytest.fixture(scope="module")
def servers(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("contract")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as loops:
        url = new_database(nodes.url)
        followed = make_world(unhurried, store=url)
        followed.app.state.shared.start()
        collector = Collector(folder, url)
        collector.inserter.start()
        memory = make_world(unhurried)
        places = [Place(job="job", rank=rank, world=2) for rank in (0, 1)]
        trainings = [batches_of("one", 1), batches_of("two", 2)]
        trainings += [batches_of(f"rank-{place.rank}", 3 + place.rank, place) for place in places]
        for turn, batches in enumerate(zip(*trainings, strict=True)):
            for batch in batches:
                memory.take(batch)
                collector.post(batch)
            if not turn:  # a training that ended before a server saw it is read only on request
                wait_for(lambda: sum(run.loaded for run in followed.runs.every()) >= 4, "the first frames")
        collector.wait()
        wait_for(lambda: _has_all(followed), "the last frame")
        written = [(edit(memory, *each), edit(followed, *each)) for each in EDITS]
        opened = make_world(unhurried, store=url)
        opened.app.state.shared.start()
        for run in opened.runs.every():
            opened.runs.read(run)
        long = make_world(unhurried, store=url)
        long.app.state.shared.start()
        with patch.context() as small:
            small.setattr(entry, "WHOLE_ROWS", 100)
            small.setattr(entry, "WINDOW_ROWS", 700)
            small.setattr(reading, "FRAME_ROWS", 1)
            for run in long.runs.every():
                long.runs.read(run)
        for world in (memory, followed, opened, long):  # one loop for all requests, as in a real server
            world.client.portal = loops.enter_context(start_blocking_portal())
        yield Servers(memory, followed, opened, long, written)
        for world in (followed, opened, long):
            world.app.state.shared.close()
        collector.stop()


# -- the requests ------------------------------------------------------------------------------------------------------

LATE: Final = (  # they cover the newest steps of a long run
    "findings",
    "incidents",
    "report",
    "runs/ranks-job/find?f=is:nan",  # in it, the last NaN is before these steps
)
MARKS: Final = "marks", "course"  # on the timeline, including incidents; and the sentence about the loss
OWN: Final = frozenset({"counters", "usage", "in_memory", "folder"})  # about the server itself
IN_MEMORY: Final = ("taps", "labels")  # of a run, known only if it is in memory
CLOCK: Final = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d UTC|data-now="[\d.]+"')  # the time at which a text was made
COUNTED: Final = re.compile(r'"(events|edits)":\d+')  # in a page: counts since the start of the server
PARTIAL: Final = re.compile(r'id="partial" role="status"( hidden)?>')
EDITS: Final = (*WRITTEN, *REFUSED)
SHOWN: Final = (*(f"/runs/{run}{page}" for run in ("one", "ranks-job") for page in PAGES_OF_A_RUN), *PAGES)
FROM_THE_BEGINNING: Final = '["{run}",[[-1,0,0],0,-1,"",0]]'  # a position in the stream of events
HOST: Final = "127.0.0.1:8642"
PATIENCE_S: Final = 30.0


def plain(answer: Any) -> Any:
    """Return an answer without the parts that aren't about the run."""
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items() if name not in OWN}
    return [plain(each) for each in answer] if isinstance(answer, list) else answer


def without(answer: Any, name: str) -> Any:
    return {each: value for each, value in answer.items() if each != name} if isinstance(answer, dict) else answer


def content_of(response: Any) -> Any:
    """Return the content of an answer as lines, so that a failing test shows the ones that differ."""
    kind = response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        return plain(response.json())
    if kind.startswith("text/"):
        return COUNTED.sub("", CLOCK.sub("", response.text)).splitlines()
    return response.content


def ask(world: World, question: str) -> Any:
    response = world.client.get(f"/api/v1/{question}")
    return response.status_code, content_of(response)


def edit(world: World, method: str, address: str, content: dict[str, Any] | None) -> Any:
    response = world.client.request(method, f"/api/v1/{address}", json=content)
    answer = content_of(response)
    for name in IN_MEMORY:
        answer = without(answer, name)
    return response.status_code, answer


def show(world: World, page: str) -> Any:
    response = world.client.get(page, headers={"Accept": "text/html"})
    return response.status_code, content_of(response)


def stream(world: World, question: str) -> dict[str, Any]:
    """Return all messages of a run that has ended, by their types."""
    address, _, query = question.partition("?")
    run = query.partition("&")[0].removeprefix("run=")
    headers = {"host": HOST, "last-event-id": FROM_THE_BEGINNING.format(run=run)}
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/api/v1/{address}",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8642),
    }

    async def read() -> bytes:
        body, ended = b"", asyncio.Event()

        async def send(message: Any) -> None:
            nonlocal body
            body += message.get("body", b"")
            if b"data: " in body:
                ended.set()

        async def receive() -> Any:
            await asyncio.Event().wait()

        answering = asyncio.ensure_future(world.app(scope, receive, send))
        try:
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
        finally:
            answering.cancel()
        return body

    assert world.client.portal is not None
    (block,) = blocks_of(world.client.portal.call(read))
    return {name: plain(message) for name, message in block.data.items()}


def subscribe(world: World, run: str) -> list[Any]:
    """Return the first messages of the socket for each view of a run."""
    found: list[Any] = []
    with world.client.websocket_connect(f"ws://{HOST}/api/v1/socket") as socket:
        for number, view in enumerate(SUBSCRIBED):
            socket.send_text(json.dumps({"op": "subscribe", "id": number, "run": run, **view}))
            while "state" not in (said := _said(Message.read(_received(socket)))):
                assert "error" not in said, said
                found.append(said)
            found.append(said)
    return found


def _received(socket: Any) -> bytes:
    """Return the next message. The session's own method would wait for it forever."""
    message = socket.portal.start_task_soon(socket._send_rx.receive).result(PATIENCE_S)
    found: bytes = message["bytes"]
    return found


def _said(message: Message) -> Any:
    if message.kind == 3:
        return message.json
    return message.kind, message.first_step, message.columns, message.rows, message.data


# -- every route is requested ------------------------------------------------------------------------------------------


def test_every_route_and_page_is_tested_with_both_stores_or_exempt_for_a_reason() -> None:
    routes = [*routes_of(make_world(unhurried).app.routes)]
    asked = {("SOCKET", "/api/v1/socket")}
    asked |= {("GET", f"/api/v1/{each.format(run='one')}") for each in (*OF_A_RUN, *OF_SEVERAL, *STREAMED)}
    asked |= {(method, f"/api/v1/{address}") for method, address, _ in EDITS}
    asked |= {("GET", each) for each in (*PAGES, *(f"/runs/one{page}" for page in PAGES_OF_A_RUN))}
    covered = set()
    for method, address in asked:
        path = address.partition("?")[0]
        fitting = (route for name, route in routes if name == method and route.path_regex.match(path))
        covered.add(f"{method} {next(fitting).path}")
    every = {f"{method} {route.path}" for method, route in routes}
    assert len(every) > 80
    assert every - covered == set(EXCEPTIONS)


# -- the same answers --------------------------------------------------------------------------------------------------


@pytest.mark.clickhouse("18.16", "26")
def test_a_long_run_opened_late_says_what_begins_late_and_answers_everything_else_alike(
    servers: Servers,
) -> None:
    """Its older steps are only in ClickHouse, and those of all ranks are added up on request."""
    begins = {"one": 224, "rank-1": 224, "ranks-job": 262}
    for run, step in begins.items():
        beginning = f"findings, incidents, and counts of non-finite steps cover steps from {step} on"
        for question in (*(each.format(run=run) for each in OF_A_RUN), f"report?run={run}"):
            response = servers.long.client.get(f"/api/v1/{question}")
            assert beginning in response.headers["hookcore-partial"]
            assert "etag" not in response.headers
            if question == f"runs/{run}":
                assert beginning in response.json()["partial"]
            elif not question.startswith(LATE):
                expected, found = ask(servers.memory, question)[1], content_of(response)
                for name in (*MARKS, *(("findings",) if run == "ranks-job" else ())):
                    expected, found = without(expected, name), without(found, name)
                assert found == expected, question
        store = servers.long.runs.get(run).store  # type: ignore[union-attr]
        assert store.whole_since == step


@pytest.mark.clickhouse("18.16", "26")
@pytest.mark.parametrize("question", [each.format(run=run) for run in RUNS for each in OF_A_RUN] + list(OF_SEVERAL))
def test_both_servers_give_the_same_answers(servers: Servers, question: str) -> None:
    expected = ask(servers.memory, question)
    assert expected[0] == 200, expected
    assert ask(servers.followed, question) == expected, "followed"
    assert ask(servers.opened, question) == expected, "opened"


@pytest.mark.parametrize("place", range(len(EDITS)), ids=[" ".join(each[:2]) for each in EDITS])
def test_edits_are_answered_in_the_same_way(servers: Servers, place: int) -> None:
    expected, found = servers.written[place]
    assert (expected[0] in (404, 409)) == (EDITS[place] in REFUSED), expected
    assert found == expected


@pytest.mark.parametrize("question", STREAMED)
def test_both_servers_send_the_same_over_streams(servers: Servers, question: str) -> None:
    expected = stream(servers.memory, question)
    assert set(expected) == {"rows", "latest", "scalars", "events", "incidents", "state"}
    assert stream(servers.followed, question) == expected, "followed"
    assert stream(servers.opened, question) == expected, "opened"


@pytest.mark.parametrize("run", RUNS)
def test_both_servers_send_the_same_over_sockets(servers: Servers, run: str) -> None:
    expected = subscribe(servers.memory, run)
    assert subscribe(servers.followed, run) == expected, "followed"
    assert subscribe(servers.opened, run) == expected, "opened"


@pytest.mark.parametrize("page", SHOWN)
def test_both_servers_show_the_same_pages(servers: Servers, page: str) -> None:
    expected = show(servers.memory, page)
    assert expected[0] == 200
    for world in (servers.followed, servers.opened):
        assert "\n".join(unified_diff(expected[1], show(world, page)[1], "memory", "ClickHouse", n=0)) == ""


def test_the_page_with_the_settings_of_a_server_hides_the_password_of_its_store(servers: Servers) -> None:
    status, lines = show(servers.followed, "/settings?run=one")
    text = "\n".join(lines)
    assert status == 200
    assert "clickhouse://hookcore@127.0.0.1:" in text
    assert quote(PASSWORD) not in text


@pytest.mark.parametrize("page", [each for each in SHOWN if each.startswith("/runs/") and "part=" not in each])
def test_pages_of_a_long_run_say_what_begins_late(servers: Servers, page: str) -> None:
    status, lines = show(servers.long, page)
    text = "\n".join(lines)
    if "/incident" in page:  # it was before the steps that incidents cover
        assert status == 404
        assert "This run is long: " in text
    else:
        assert status == 200
        hidden = PARTIAL.search(text)
        assert hidden is not None
        assert not hidden[1]
