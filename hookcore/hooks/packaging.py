"""Records of what torch.package decides for each module of an export: packed, left outside, or mocked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch.package.package_exporter import PackageExporter
from torch.utils.hooks import RemovableHandle

from hookcore.errors import ArgumentError
from hookcore.hooks.checks import describe, require_callable
from hookcore.hooks.handle import EXPORT_LOOP, HookHandle, registering

Action = Literal["extern", "intern", "mock"]
Hook = Callable[[PackageExporter, str], Any]


@dataclass(frozen=True, slots=True)
class PackageDecision:
    """The decision about one module of an export. `order` counts from 0."""

    order: int
    action: Action
    module: str


class _Decisions:
    """The list of decisions, which grows while an export runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: list[PackageDecision] = []

    def note(self, action: Action, fn: Hook | None, exporter: PackageExporter, module_name: str) -> None:
        """Record a decision. Torch's own signature, with the action and the user's function bound before it."""
        with self._lock:
            self.made.append(PackageDecision(len(self.made), action, module_name))
        if fn is not None:
            fn(exporter, module_name)


class PackageHandle(HookHandle):
    """The hooks of one export, and the `decisions` that they have seen, in order."""

    __slots__ = ("_decisions",)

    def __init__(self, handles: tuple[RemovableHandle, ...], decisions: _Decisions) -> None:
        super().__init__("package", handles, loops=EXPORT_LOOP)
        self._decisions = decisions

    @property
    def decisions(self) -> tuple[PackageDecision, ...]:
        """All decisions so far. Torch makes them when the exporter closes."""
        return tuple(self._decisions.made)

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A package handle belongs to an open export and cannot be copied. Register again.")


def on_package(
    exporter: PackageExporter, *, extern: Hook | None = None, intern: Hook | None = None, mock: Hook | None = None
) -> PackageHandle:
    """Record every decision of an export. `extern`, `intern`, and `mock` are called with `(exporter, module_name)`."""
    for fn in (extern, intern, mock):
        if fn is not None:
            require_callable(fn, "(exporter, module_name)")
    if not isinstance(exporter, PackageExporter):
        raise ArgumentError(
            f"Got {describe(exporter)}; expected a torch.package.PackageExporter. Pass the exporter inside its `with`."
        )
    decisions = _Decisions()
    with registering():
        handles = (
            exporter.register_extern_hook(partial(decisions.note, "extern", extern)),
            exporter.register_intern_hook(partial(decisions.note, "intern", intern)),
            exporter.register_mock_hook(partial(decisions.note, "mock", mock)),
        )
        return PackageHandle(handles, decisions)
