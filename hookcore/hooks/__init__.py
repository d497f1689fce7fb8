"""All hook points of PyTorch as one small API: `on_*` takes a function with torch's signature and returns a handle."""

from __future__ import annotations

from hookcore.hooks.backward import on_backward_end
from hookcore.hooks.distributed import BucketRecord, CommunicationHandle, on_communication
from hookcore.hooks.handle import HookHandle
from hookcore.hooks.hooked_module import HookedModule
from hookcore.hooks.inventory import inventory
from hookcore.hooks.modules import (
    on_buffer_registration,
    on_forward,
    on_forward_pre,
    on_full_backward,
    on_full_backward_pre,
    on_module_registration,
    on_parameter_registration,
)
from hookcore.hooks.optimizers import (
    PackageDecision,
    PackageHandle,
    on_optimizer_step,
    on_optimizer_step_pre,
    on_package,
)
from hookcore.hooks.tensors import (
    on_gradient,
    on_gradient_accumulated,
    on_gradients,
    on_node,
    on_node_pre,
    on_saved_tensors,
)
from hookcore.records import HookRecord

__all__ = [
    "BucketRecord",
    "CommunicationHandle",
    "HookHandle",
    "HookRecord",
    "HookedModule",
    "PackageDecision",
    "PackageHandle",
    "inventory",
    "on_backward_end",
    "on_buffer_registration",
    "on_communication",
    "on_forward",
    "on_forward_pre",
    "on_full_backward",
    "on_full_backward_pre",
    "on_gradient",
    "on_gradient_accumulated",
    "on_gradients",
    "on_module_registration",
    "on_node",
    "on_node_pre",
    "on_optimizer_step",
    "on_optimizer_step_pre",
    "on_package",
    "on_parameter_registration",
    "on_saved_tensors",
]
