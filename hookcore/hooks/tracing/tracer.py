"""`hookcore.trace`: selected layers of a model, traced during a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from torch import Tensor, nn

from hookcore import hooks
from hookcore.config import Pattern, Setting, Settings, nearest
from hookcore.config.patterns import select
from hookcore.config.readers import read_set
from hookcore.errors import ArgumentError, TraceError
from hookcore.hooks.compiled import clean_path, compiled_functions, compiled_regions, has_compiled, is_inside, unwrap
from hookcore.hooks.headroom import hold_headroom, release_headroom
from hookcore.hooks.tracing.calls import TRACE_KINDS, Layer, Period, TraceKind
from hookcore.hooks.tracing.copies import GradientHook
from hookcore.hooks.tracing.modules import TracedModule
from hookcore.hooks.tree import walk

_KINDS: Final = Setting(
    "kinds", TRACE_KINDS, f"one or more of {', '.join(map(repr, TRACE_KINDS))}", "What to copy.", read_set(TRACE_KINDS)
)
_COMPILED: Final = (
    "it is inside a compiled region, where no hook runs. Trace the model before you compile it, or call the original "
    "module (`compiled._orig_mod`) under the trace"
)


@contextmanager
def trace(
    model: nn.Module,
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    *,
    kinds: TraceKind | Iterable[TraceKind] = TRACE_KINDS,
) -> Iterator[Trace]:
    """Copy the inputs, outputs, and gradients of some layers in a `with` block. Starts no process, writes no file.

        with hookcore.trace(model, "layer4") as seen:
            loss = criterion(model(x), y)
            loss.backward()
        seen["layer4"].output, seen["layer4"].output_grad

    include, exclude: the layers, as patterns of `hookcore.watch`; by default all of them. kinds: what to copy. Each
    copy stays in memory, on its tensor's device, until you drop the trace. The model computes the same results, bit
    for bit. After the block, no hook remains.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"trace() was given a {type(model).__name__}; it takes a torch.nn.Module")
    chosen = Settings.of({}, include=include, exclude=exclude)
    seen = Trace(model, chosen, frozenset(_KINDS.value_of(kinds)))  # type: ignore[call-overload]
    try:
        seen._attach()
        yield seen
    finally:
        seen._detach()


class Trace:
    """The layers of one `hookcore.trace`, by path; "" is the model itself. It stays readable after the `with`."""

    def __init__(self, model: nn.Module, settings: Settings, kinds: frozenset[TraceKind]) -> None:
        outer: dict[str, nn.Module] = {}  # a wrapper of torch.compile, else the module
        inner: dict[str, nn.Module] = {}
        for path, module in walk(model, every_path=True):
            outer.setdefault(clean_path(path), module)
            inner[clean_path(path)] = module
        leaves = {path for path, module in inner.items() if not module._modules}
        self._paths = tuple(inner)
        self._period = Period()
        self._lock = threading.Lock()
        self._handles: list[hooks.HookHandle] = []
        self._layers: dict[str, Layer] = {}
        self._traced: dict[int, TracedModule] = {}
        regions = compiled_regions(model)
        for path in select(inner, leaves, settings.include, settings.exclude).chosen:
            key = id(inner[path])
            if key not in self._traced:
                layer = Layer(path, kinds, self._period)
                self._traced[key] = TracedModule(outer[path], layer, kinds, self._hook_gradient)
                if is_inside(path, regions) and unwrap(outer[path]) is outer[path]:
                    layer.unseen = _COMPILED
            self._layers[path] = self._traced[key].layer
        unseen = [layer for layer in self._layers.values() if layer.unseen]
        if unseen and len(unseen) == len(self._layers):
            raise TraceError(f"{unseen[0].path or 'the model'!r} can't be traced: {unseen[0].unseen}")

    def __getitem__(self, path: str) -> Layer:
        layer = self._layers.get(path)
        if layer is None:
            raise TraceError(self._why_unknown(path))
        return layer

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, path: object) -> bool:
        return path in self._layers

    def __repr__(self) -> str:
        state = "over" if self._period.is_over else "recording"
        return f"<hookcore.hooks.tracing.Trace {state}, {len(self._layers)} layers>"

    def _why_unknown(self, path: str) -> str:
        if path in self._paths:
            return f"{path!r} is not traced: the patterns given to trace() leave it out"
        near = nearest(str(path), filter(None, self._paths))
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Traced: {', '.join(map(repr, self))}."
        return f"the model has no layer {path!r}. {hint if len(hint) < 500 else ''}".rstrip()

    def _attach(self) -> None:
        hold_headroom()
        for traced in self._traced.values():
            if not traced.layer.unseen:
                self._handles += traced.attach()

    def _detach(self) -> None:
        with self._lock:
            self._period.is_over = True
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        release_headroom()
        if has_compiled():
            self._period.compiled = compiled_functions(traced.module for traced in self._traced.values())
        self._traced.clear()  # they hold the model

    def _hook_gradient(self, tensor: Tensor, hook: GradientHook) -> None:
        with self._lock:
            if not self._period.is_over:
                handle = hooks.on_gradient(tensor, hook)
                self._handles.append(handle)
                hook.leaf_handle = handle if tensor.is_leaf else None
