"""The collector's application and process: it listens where trainers send, and answers from its spool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response

import hookcore
from hookcore.delivery.dashboard.process import data_folder
from hookcore.delivery.http.connection import Address
from hookcore.errors import ArgumentError
from hookcore.records.wire import Batch, Receipt

from ..api import ingest, login
from ..api.health import Metric, exposition, healthz
from ..clickhouse.client import EXAMPLE, ClusterAddress, is_clickhouse, without_password
from ..clickhouse.schema import connect
from ..main import make_app
from ..serving.server import Lifetime, complete, listen, moved, prepare, server_of, url_of
from ..settings import CollectorSettings, ServerSettings
from .lanes import FullError, Lanes, WrongKeyError
from .sending import Forwarder, Inserter
from .spool import SpoolError

RETRY_S: Final = 2
MIN_SPOOL_BYTES: Final = 10**6
router = APIRouter()


def create_collector(settings: ServerSettings, given: CollectorSettings) -> FastAPI:
    """Create a collector's application. It sends nothing before its forwarder is started."""
    if not is_clickhouse(given.to) and not given.to.startswith(("http://", "https://")):
        raise ArgumentError(
            f"to={without_password(given.to)!r} is neither the address of a server, such as https://box:8642, nor one "
            f"of ClickHouse: {EXAMPLE}"
        )
    if given.spool_limit < MIN_SPOOL_BYTES:
        raise ArgumentError(f"spool_limit={given.spool_limit} is too small: give at least 1MB")
    app = make_app(settings, "hookcore collector")
    state = app.state
    state.given = given
    folder = Path(given.spool) if given.spool else data_folder() / "spool"
    state.lanes = Lanes(folder, given.spool_limit, given.sync)
    state.forwarder = _forwarder_of(given, state.lanes)
    state.take = lambda batch, data, _own: _take(state, batch, data)
    for part in (ingest, login):
        app.include_router(part.router)
    app.get("/healthz")(healthz)
    app.include_router(router)
    return app


def _forwarder_of(given: CollectorSettings, lanes: Lanes) -> Forwarder | Inserter:
    if not is_clickhouse(given.to):
        return Forwarder(lanes, Address(given.to.rstrip("/"), given.to_token))
    return Inserter(lanes, connect(ClusterAddress.of(given.to), hookcore.__version__), given.insert)


def _take(state: Any, batch: Batch, data: bytearray) -> Receipt:
    intake: ingest.Intake = state.intake
    lanes: Lanes = state.lanes
    try:
        return lanes.take(batch, data)
    except WrongKeyError as error:
        raise intake.refuse(403, str(error)) from None
    except FullError as error:
        raise intake.refuse(429, str(error), {"Retry-After": str(RETRY_S)}) from None
    except SpoolError as error:  # the trainer keeps it, and tries again
        raise intake.refuse(503, str(error), {"Retry-After": str(RETRY_S)}) from None


@router.get("/readyz", responses={503: {"description": "the collector is stopping"}})
def readyz(request: Request) -> dict[str, str]:
    """Report that the collector takes batches, whether or not its server is there."""
    if request.app.state.stopping:
        raise HTTPException(503, "this collector is stopping: ask again in a moment", {"Retry-After": "5"})
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> PlainTextResponse:
    """Return the collector's metrics in the Prometheus format."""
    return exposition(_metrics_of(request.app.state))


def _metrics_of(state: Any) -> Iterator[Metric]:
    lanes, intake, forwarder = state.lanes, state.intake, state.forwarder
    all_lanes = lanes.all()
    dropped = sum((lane.dropped for lane in all_lanes), Counter(lanes.dropped))
    yield Metric("collector_runs", "gauge", "Runs whose trainers send here.", [({}, len(all_lanes))])
    yield Metric(
        "collector_runs_waiting",
        "gauge",
        "Runs that the server isn't accepting now; the log says why.",
        [({}, sum(bool(lane.trouble) for lane in all_lanes))],
    )
    yield from intake.metrics()
    yield Metric("spool_bytes", "gauge", "Bytes in the spool.", [({}, lanes.spool.nbytes + lanes.spool.heads_nbytes)])
    yield Metric("spool_limit_bytes", "gauge", "Maximum bytes in the spool.", [({}, lanes.spool.limit_bytes)])
    yield Metric("spool_sync_errors_total", "counter", "Failed syncs of the spool.", [({}, lanes.spool.sync_errors)])
    yield Metric("spool_damaged_total", "counter", "Unreadable places in the spool.", [({}, lanes.spool.damaged)])
    yield Metric(
        "waiting_items", "gauge", "Items that the server doesn't have.", [({}, sum(lane.waiting for lane in all_lanes))]
    )
    yield Metric(
        "items_dropped_total",
        "counter",
        "Items dropped here, by reason.",
        [({"reason": why}, count) for why, count in sorted(dropped.items())],
    )
    yield from forwarder.metrics()


@router.get("/", include_in_schema=False)
@router.get("/{path:path}", include_in_schema=False)
def elsewhere(request: Request, path: str = "") -> Response:
    """Lead a browser, such as one that follows a trainer's link, to the server that shows the runs."""
    to = request.app.state.given.to
    if is_clickhouse(to):
        raise HTTPException(
            404, f"this collector inserts into {without_password(to)}: `hookcore serve --store` shows its runs"
        )
    if path.startswith("api/"):
        raise HTTPException(404, f"this is a collector: ask the server at {to}")
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{to.rstrip('/')}/{path}{query}", 307)


def run(given: ServerSettings, collector: CollectorSettings) -> None:
    """Collect until a signal arrives."""
    with listen(given.host, given.port) as listening:
        settings = complete(given, listening)
        prepare(settings)
        app = create_collector(settings, collector)
        lanes, forwarder = app.state.lanes, app.state.forwarder
        lifetime = Lifetime(lanes.forget_finished, lambda: None, (forwarder.close, lanes.close))
        server = server_of(app, lifetime)
        forwarder.start()
        print(_greeting(given, settings, collector, lanes), flush=True)
        server.run(sockets=[listening])


def _greeting(given: ServerSettings, settings: ServerSettings, collector: CollectorSettings, lanes: Lanes) -> str:
    lines = [
        f"hookcore collects at {url_of(settings)}/ for {without_password(collector.to)};"
        f" its spool is {lanes.spool.folder}"
    ]
    lines += moved(given, settings)
    if lanes.spool.nbytes:
        lines.append(
            f"{sum(lane.waiting for lane in lanes.all()):,} frames and snapshots are waiting from an earlier start."
        )
    if not settings.is_loopback and not settings.certfile:
        lines.append("Token and data are sent unencrypted: set certfile and keyfile, or use a tunnel.")
    if not given.token:
        lines.append(f"Token, generated for this start and shown only here: {settings.token}")
    return "\n".join(lines)
