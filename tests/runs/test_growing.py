"""Opening a run that another process is writing: it is live, and is read again as it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookcore.delivery.http import Address, HttpSink
from hookcore.records import Tap
from hookcore.records.wire import Batch, EndItem
from hookcore_app.runs.keep import Growing
from hookcore_app.runs.saved import show_all
from tests.keep_world import INFO, TAPS, ServerProcess, batch, stop, writer_of
from tests.receiver import a_frame, a_run
from tests.serving import BEARER, TOKEN, make_world
from tests.waiting import wait_for


def test_an_opened_run_that_another_process_is_writing_is_live_and_read_again_until_it_ends(tmp_path: Path) -> None:
    world = make_world(keep=str(tmp_path))
    world.take(batch(INFO, range(3), first=True))
    writer = writer_of(world)
    wait_for(lambda: writer.progress.written > 0)  # by the thread, which is now waiting for the next part
    writer.write()
    reader = make_world(keep="")
    (run,) = show_all(reader.runs, tmp_path)
    growing = Growing(reader.runs, lambda: 0.0)

    def shown() -> tuple[str, int, list[str]]:
        growing.look()
        found = reader.runs.find(INFO.id)
        assert found is run
        return run.state, run.store.steps().count, [event.name for event in run.store.events()]

    assert shown() == ("live", 3, [])
    refused = reader.client.patch(f"/api/v1/settings?run={INFO.id}", json={"paused": True}, headers=BEARER)
    assert (refused.status_code, "only reads the run" in refused.json()["error"]) == (400, True)
    world.take(batch(INFO, range(3, 6)))
    writer.write()
    assert shown() == ("live", 6, [])
    world.take(Batch(run=INFO, taps_from=len(TAPS), items=(EndItem(6, 5),)))
    stop(world)
    assert shown() == ("ended", 6, [])


@pytest.mark.slow
def test_an_opened_run_whose_server_is_killed_is_lost_from_then_on(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.start()
    sink = HttpSink(a_run(), close_s=0.0)
    sink.start(Address(server.url, TOKEN))
    sink.send(a_frame(0, (Tap("layer", "output"),)))
    wait_for(lambda: any(server.folder.glob("*/steps/*.parquet")))
    reader = make_world(keep="")
    (run,) = show_all(reader.runs, server.folder)
    growing = Growing(reader.runs, lambda: 0.0)
    growing.look()
    reader.runs.read(run)
    assert run.state == "live"
    server.kill()
    growing.look()
    assert run.state == "lost"
    assert [event.name for event in run.store.events()] == ["cut-off"]
    sink.close()
