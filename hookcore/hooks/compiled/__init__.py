"""Support for `torch.compile`: hooks that it doesn't see, its regions found and named, and hooks inside them.

Keeps no numbers and knows no recorder. Nothing here imports `torch._dynamo`, which would add a second to the start.
"""

from hookcore.hooks.compiled.aside import QuietHooks, StepAside
from hookcore.hooks.compiled.cache import has_compiled
from hookcore.hooks.compiled.inside import Inside, Observer
from hookcore.hooks.compiled.regions import (
    clean_path,
    compiled_functions,
    compiled_regions,
    forget_graphs,
    guard_functions,
    guarded,
    is_dynamo_graph,
    is_inside,
    is_region,
    runs_uncompiled,
    runs_under_dynamo,
    unwrap,
)

__all__ = [
    "Inside",
    "Observer",
    "QuietHooks",
    "StepAside",
    "clean_path",
    "compiled_functions",
    "compiled_regions",
    "forget_graphs",
    "guard_functions",
    "guarded",
    "has_compiled",
    "is_dynamo_graph",
    "is_inside",
    "is_region",
    "runs_uncompiled",
    "runs_under_dynamo",
    "unwrap",
]
