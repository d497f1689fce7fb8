"""Health checks, and metrics for Prometheus, of a server and of a collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from hookcore.delivery.http.connection import Reason

from ..live import Publisher, publisher_of
from ..runs import STATES, Run
from .routing import REFUSALS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

# Metrics for Prometheus, of a server and of a collector.

Samples = Iterable[tuple[dict[str, str], float]]


class Metric(NamedTuple):
    """A metric and its samples by labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Samples


class _Collected:
    """What Prometheus's library asks for its numbers."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        from prometheus_client.metrics_core import Metric as Family  # only for a server whose metrics are read

        for metric in self._metrics:
            name = f"hookcore_{metric.name}"
            family = Family(name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in metric.samples:
                family.add_sample(name, labels, float(value))
            yield family


def exposition(metrics: Iterable[Metric]) -> PlainTextResponse:
    """Return metrics in the format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


REASONS: Final = frozenset({*get_args(Reason), "spool-full", "spool-damaged"})  # of trainers and collectors
router = APIRouter(responses=REFUSALS)


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Report that the server answers; this reveals nothing else and needs no token."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "the server is stopping"}})
def readyz(request: Request) -> dict[str, str]:
    """Report that the server accepts requests."""
    if request.app.state.stopping:
        raise HTTPException(503, "this server is stopping: ask again in a moment", {"Retry-After": "5"})
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> PlainTextResponse:
    """Return the server's metrics in the Prometheus format."""
    state = request.app.state
    live = publisher_of(request.app)
    # What a run of all ranks has is what its ranks have taken, so sums over runs would count it twice.
    runs = [run for run in state.runs.every() if run.loaded and not run.is_derived]
    return exposition((*_of_server(state, live), *_of_runs(runs)))


def _of_server(state: Any, live: Publisher) -> Iterator[Metric]:
    intake, runs = state.intake, state.runs.all()
    states = Counter(run.state for run in runs)
    used = state.runs.used_bytes
    yield Metric("runs", "gauge", "Runs shown, by state.", [({"state": each}, states[each]) for each in STATES])
    yield Metric("runs_removed_total", "counter", "Runs removed to make room for others.", [({}, state.runs.removed)])
    yield from intake.metrics()
    yield Metric("live_clients", "gauge", "Open live streams.", [({}, live.clients)])
    yield Metric(
        "live_refused_total", "counter", "Live streams rejected because too many were open.", [({}, live.refused)]
    )
    targets = state.notifications.notifier.targets
    counts = [({"target": target.name, "result": "sent"}, target.sent) for target in targets]
    counts += [({"target": target.name, "result": "failed"}, target.failed) for target in targets]
    yield Metric("notifications_total", "counter", "Notifications, by target and result.", counts)
    dropped = state.notifications.notifier.counters.dropped
    yield Metric(
        "notifications_dropped_total", "counter", "Incidents dropped before they could be sent.", [({}, dropped)]
    )
    yield Metric("memory_used_bytes", "gauge", "Bytes used by runs.", [({}, used)])
    yield Metric("memory_limit_bytes", "gauge", "Maximum bytes for runs.", [({}, state.settings.memory)])


def _of_runs(runs: list[Run]) -> Iterator[Metric]:
    usages = [(run, run.store.usage()) for run in runs]
    dropped = [({"run": run.id, "reason": why}, n) for run, usage in usages for why, n in usage.dropped.items()]
    unsent = [({"run": run.id, "reason": why}, n) for run in runs for why, n in _unsent(run).items()]
    steps = [(run, run.store.steps()) for run in runs]
    named = [({"run": run.id, "name": run.name, "state": run.state}, 1.0) for run in runs]
    yield Metric("run_info", "gauge", "Each run, its name and state.", named)
    yield Metric(
        "run_newest_step",
        "gauge",
        "The newest step of a run.",
        [({"run": run.id}, each.newest) for run, each in steps if each.newest is not None],
    )
    yield Metric(
        "run_frames_total", "counter", "Frames taken.", [({"run": run.id}, each.frames) for run, each in steps]
    )
    yield Metric("run_dropped_total", "counter", "What the store dropped, by reason.", dropped)
    yield Metric("run_unsent_total", "counter", "What the trainer dropped before sending, by reason.", unsent)
    yield Metric(
        "run_memory_bytes", "gauge", "Bytes of a run.", [({"run": run.id}, usage.nbytes) for run, usage in usages]
    )


def _unsent(run: Run) -> Counter[str]:
    """Return what a trainer and its collector dropped, by known reasons: trainers can say any."""
    found: Counter[str] = Counter()
    for why, count in run.received.counters.dropped.items():
        found[why if why in REASONS else "other"] += count
    return found
