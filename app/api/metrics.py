"""Metrics for Prometheus, of a server and of a collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from starlette.responses import PlainTextResponse

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
        for metric in self._metrics:
            name = f"hookcore_{metric.name}"
            family = Family(name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in metric.samples:
                family.add_sample(name, labels, float(value))
            yield family


def exposition(metrics: Iterable[Metric]) -> PlainTextResponse:
    """Return metrics in the format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
