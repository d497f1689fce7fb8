"""The contents of a capsule: the step for a replay, and a description for people."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from hookcore.capsules.call import Call, bits_of, compact
from hookcore.capsules.conditions import versions
from hookcore.capsules.facts import digest_of
from hookcore.capsules.file import WARNING
from hookcore.capsules.main_script import describe_main
from hookcore.delivery.dashboard.capsules import FORMAT
from hookcore.hooks.internals import tree_map


def step_of(model: nn.Module, call: Call, constructor: str = "") -> dict[str, Any]:
    """Return everything that a replay needs."""
    current = dict(model.named_buffers())
    changed = [
        name
        for name, buffer in call.buffers.items()
        if name in current and not torch.equal(bits_of(buffer), bits_of(current[name]))
    ]
    whole = {"model": model} if not constructor else {"state_dict": model.state_dict()}
    return {
        **whole,
        "constructor": constructor,
        "args": tree_map(compact, call.args),
        "kwargs": tree_map(compact, call.kwargs),
        "training": call.training,
        "buffers": {name: call.buffers[name] for name in changed},
        "numbers": call.numbers,
        "generators": call.generators,
        "autocast": call.autocast,
        "grad_enabled": call.grad_enabled,
        "outputs": {place: digest_of(tensor) for place, tensor in call.outputs.items()},
        "gradients": {place: compact(tensor) for place, tensor in call.gradients.items()},
    }


def about(model: nn.Module, call: Call, reason: str, step: int) -> dict[str, Any]:
    """Return the description, which can be read without running code from the capsule."""
    return {
        "format": FORMAT,
        "warning": WARNING,
        "reason": reason,
        "step": step,
        "time_s": time.time(),
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "weights": "after the update" if call.updated else "before the update",
        "changed": call.changed(),
        "unkept": call.unkept,
        "notes": call.notes,
        "versions": versions(),
        "main": describe_main(),
    }
