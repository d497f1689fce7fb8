"""hookcore watches a PyTorch training run from inside: every module's activations and gradients, every step.

    watcher = hookcore.watch(model)

Nothing heavy is imported before the first use, so that `import hookcore` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookcore import hooks as hooks
    from hookcore import probes as probes
    from hookcore.errors import (
        ArgumentError,
        ClosedError,
        HookcoreError,
        HookError,
        PatternError,
        ServerError,
        StopTraining,
        TraceError,
        WireError,
    )
    from hookcore.findings.ownrules import Problem, rule
    from hookcore.hooks.tracing import trace
    from hookcore.reading import Client
    from hookcore.watcher import Watcher, detached, watch

__version__ = "0.1.0"
__all__ = [
    "ArgumentError",
    "Client",
    "ClosedError",
    "HookError",
    "HookcoreError",
    "PatternError",
    "Problem",
    "ServerError",
    "StopTraining",
    "TraceError",
    "Watcher",
    "WireError",
    "__version__",
    "detached",
    "hooks",
    "probes",
    "rule",
    "trace",
    "watch",
]

_HOME = {
    "ArgumentError": "hookcore.errors",
    "Client": "hookcore.reading",
    "ClosedError": "hookcore.errors",
    "HookError": "hookcore.errors",
    "HookcoreError": "hookcore.errors",
    "PatternError": "hookcore.errors",
    "Problem": "hookcore.findings.ownrules",
    "ServerError": "hookcore.errors",
    "StopTraining": "hookcore.errors",
    "TraceError": "hookcore.errors",
    "Watcher": "hookcore.watcher",
    "WireError": "hookcore.errors",
    "detached": "hookcore.watcher",
    "rule": "hookcore.findings.ownrules",
    "trace": "hookcore.hooks.tracing",
    "watch": "hookcore.watcher",
}


def __getattr__(name: str) -> Any:
    if name in ("hooks", "probes"):
        return import_module(f"hookcore.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hookcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
