"""Functions for `watcher.probe`: `watcher.probe("rank", hookcore.probes.effective_rank, include="blocks.*")`."""

from __future__ import annotations

from hookcore.probes.curvature import sharpness
from hookcore.probes.gradients import GradientCosine, NoiseScale
from hookcore.probes.tensors import (
    attention_entropy,
    channel_rms,
    channel_zeros,
    dead_channels,
    effective_rank,
    saturation,
)

__all__ = [
    "GradientCosine",
    "NoiseScale",
    "attention_entropy",
    "channel_rms",
    "channel_zeros",
    "dead_channels",
    "effective_rank",
    "saturation",
    "sharpness",
]

for _name in __all__:  # the name by which rules and readers know them, whatever file they are in
    globals()[_name].__module__ = __name__
