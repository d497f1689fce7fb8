"""`record`: keeps the last call of a model, and writes it to a capsule when something goes wrong."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn

from hookcore import hooks
from hookcore.capsules.calls import Arrival, Call, alias_of, autocast_types, call_of, is_plain
from hookcore.capsules.content import about, bad_elements, is_numeric, step_of, write_capsule
from hookcore.delivery.dashboard.private import remove_orphans
from hookcore.errors import ArgumentError
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.handle import InertInCopies
from hookcore.observe.plain import unseen
from hookcore.recorder.known.roots import find_tensors

When = Literal["error", "exception", "asked"]
MAX_BYTES: Final = 4 << 30


class Recording:
    """A model whose last call is kept. `written` is the capsule's path once there is one, `failure` why not."""

    def __init__(self, model: nn.Module, path: Path, when: When, max_bytes: int, constructor: str) -> None:
        self._model, self._path, self._when = model, path, when
        self._max_bytes, self._constructor = max_bytes, constructor
        self._call: Call | None = None
        self._lock = threading.Lock()  # optimizers may step in several threads
        self._handles: list[hooks.HookHandle] = []
        self._of_outputs: list[hooks.HookHandle] = []
        self.step = 0  # the number of optimizer steps since the recording began
        self.written: Path | None = None
        self.failure = ""

    def attach(self) -> None:
        """Register the hooks."""
        self._handles = [
            hooks.on_forward_pre(self._model, _Hook(self._enter), with_kwargs=True),
            hooks.on_forward(self._model, _Hook(self._leave)),
            hooks.on_optimizer_step_pre(None, self._before_step),
            hooks.on_optimizer_step(None, self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks, and release the last call."""
        for handle in [*self._handles, *self._of_outputs]:
            handle.remove()
        self._handles, self._of_outputs, self._call = [], [], None

    # The training

    def _enter(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the arguments and the state at the start of a call."""
        conditions = autocast_types(), torch.is_grad_enabled()  # the block below changes both
        with self._guarded():
            if self.written is not None or not is_plain((args, kwargs)):
                return
            self._check("after a micro-batch")
            if self.written is None:
                self._release_outputs()
                self._call = call_of(self._model, args, kwargs, *conditions)

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Keep the outputs of the call, and wait for their gradients."""
        call = self._call
        with self._guarded():
            if call is None or not is_plain(output):
                return
            for place, tensor in find_tensors(output):
                call.outputs[place] = alias_of(tensor)
                if tensor.requires_grad and not tensor.is_leaf:
                    self._of_outputs.append(hooks.on_gradient(tensor, Arrival(call, place)))

    def _before_step(self, *_: Any) -> None:
        with self._guarded():
            self._check("before an optimizer's step")

    def _after_step(self, *_: Any) -> None:
        self.step += 1

    def _check(self, where: str) -> None:
        """Write the capsule if an output has NaN or a gradient is non-finite. This waits for the device."""
        if self._when != "error" or self._call is None or self.written is not None or self.failure:
            return
        for name, output in self._call.outputs.items():
            if is_numeric(output) and bool(output.isnan().any()):  # an infinity may be a mask
                self.write(f"NaN in the activation {name}".rstrip() + f", found {where}")
                return
        for name, parameter in self._model.named_parameters():
            gradient = parameter.grad
            if gradient is not None and is_numeric(gradient) and bool(bad_elements(gradient, None).any()):
                self.write(f"non-finite gradient of {name}, found {where}")
                return

    def _release_outputs(self) -> None:
        for handle in self._of_outputs:
            handle.remove()
        self._of_outputs = []

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep errors from reaching the training, and operators from reaching its modes."""
        try:
            with unseen():
                yield
        except Exception as error:
            self._fail(error)

    # The capsule

    def write(self, reason: str = "asked for") -> Path | None:
        """Write the last call of the model. Return the path, or None if that failed, with the reason in `failure`."""
        with self._lock, self._guarded():
            if self._call is None:
                self.failure = "the model has not been called"
                return None
            with torch.no_grad():
                step = step_of(self._model, self._call, self._constructor)
                described = about(self._model, self._call, reason, self.step)
                write_capsule(self._path, described, step, self._max_bytes)
            self.written = self._path
        return self.written

    def _fail(self, error: BaseException) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        print(f"hookcore: no capsule: {self.failure}", file=sys.stderr, flush=True)


class _Hook(InertInCopies):
    """A hook on the model, of which copies of the model have none."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> None:
        self._call(*given)


@contextlib.contextmanager
def record(
    model: nn.Module,
    path: str | os.PathLike[str],
    when: When = "error",
    *,
    max_bytes: int = MAX_BYTES,
    constructor: str = "",
) -> Iterator[Recording]:
    """Keep the last call of the model in this block, and write it to a capsule when something goes wrong.

    `when`: "error" writes the first call whose gradients are non-finite, before an optimizer changes the weights, or
    the last call if an exception leaves the block. "exception" writes only then, and "asked" only in `write()`.
    `constructor`: "module:callable" that returns the model, for one that can't be pickled; its `state_dict` is saved.
    """
    if when not in ("error", "exception", "asked"):
        raise ArgumentError(f"when={when!r} is invalid: use 'error', 'exception', or 'asked'")
    if constructor and ":" not in constructor:
        raise ArgumentError(
            f"constructor={constructor!r} is invalid: use a module and a callable, as in train:make_model"
        )
    if left := remove_orphans(Path(path).parent, Path(path).name):
        print(f"hookcore: removed {left} unfinished files that killed processes left for {path}", file=sys.stderr)
    recording = Recording(model, Path(path), when, max_bytes, constructor)
    recording.attach()
    try:
        yield recording
    except Exception as error:
        if when != "asked" and recording.written is None and recording._call is not None:
            recording.write(f"exception: {type(error).__name__}: {error}")
        raise
    finally:
        recording.close()


guard_functions(_Hook.__call__, Recording._before_step, Recording._after_step)
