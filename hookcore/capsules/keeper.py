"""Keeps the running step of a watched training, and writes it to a capsule when something goes wrong in it.

Everything here runs between the user's own lines, in captured steps: it draws no random number, waits for no device,
and copies nothing but the buffers that a model changes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.capsules.call import Call, Members, alias_of, aliases_in, has_data, is_traced, state_of, versions_of
from hookcore.capsules.conditions import autocast_types
from hookcore.capsules.content import about, step_of
from hookcore.capsules.file import write_capsule
from hookcore.capsules.frames import RecentFrames
from hookcore.config import Capsule
from hookcore.dashboard.capsules import MAX_RUNS, path_of, prepare, remove_old
from hookcore.errors import CapsuleError
from hookcore.hooks.compiled import guarded
from hookcore.hooks.tensors import hook_gradient
from hookcore.internals import dispatch_modes, function_modes
from hookcore.observe.generators import device_generators
from hookcore.observe.plain import unseen
from hookcore.recorder.keeper import Emit, FirstBad
from hookcore.recorder.outputs import find_tensors
from hookcore.records import ROOT, Frame

MAX_WRITTEN: Final = 3  # capsules of one run
MAX_FAILED: Final = 3  # attempts
MAX_MODELS: Final = 8  # whose newest calls are kept
_NOT_CALLED: Final = "the training called no model that contains it, or the step was not captured"
HELD_BYTES: Final = 64 << 20  # of outputs and their gradients, if a call's arguments take less
_NOTHING_TO_HIDE: Final = contextlib.nullcontext()
_SMALL_BYTES: Final = 1 << 16  # of a buffer: the operator of BatchNorm changes its own without counting versions


@dataclass(frozen=True, slots=True)
class CapsulePlan:
    """When a run's capsules are written, and where."""

    when: Capsule
    folder: Callable[[], Path]
    max_bytes: int


@dataclass(slots=True)
class _Model:
    """A model that is called itself. Between its calls, no tensor is kept alive."""

    ref: weakref.ref[nn.Module]
    path: str
    members: Members
    moving: set[str] = field(default_factory=set)  # buffers that were seen to change
    still: dict[str, tuple[int, int]] = field(default_factory=dict)  # the states of large ones
    call: Call | None = None
    runs: bool = False

    def contains(self, path: str) -> bool:
        """Return whether a module is a part of it."""
        return not self.path or path == self.path or path.startswith((f"{self.path}.", f"{self.path}/"))

    def copies_of_buffers(self) -> dict[str, Tensor]:
        """Return copies of the small ones, and of those that were seen to change."""
        copies = {}
        for name, buffer in self.members.buffers():
            small = _bytes((buffer,)) <= _SMALL_BYTES
            known = name in self.still
            if not small and self._moved(name, buffer) and known:
                self.moving.add(name)
            if small or name in self.moving:
                copies[name] = buffer.detach().clone()
        return copies

    def changed(self, call: Call) -> list[str]:
        """Return the buffers that changed since the call began and were not copied."""
        others = ((name, buffer) for name, buffer in self.members.buffers() if name not in call.buffers)
        return [f"buffer {name}" for name, buffer in others if self._moved(name, buffer)]

    def _moved(self, name: str, buffer: Tensor) -> bool:
        state = state_of(buffer)
        moved = self.still.get(name) != state
        self.still[name] = state
        return moved


class CapsuleKeeper:
    """The keeper of one watch. `step` returns the number of the running step, `structure` that of the models' trees."""

    def __init__(self, plan: CapsulePlan, step: Callable[[], int], emit: Emit, structure: Callable[[], int]) -> None:
        self._plan, self._step, self._emit, self._structure = plan, step, emit, structure
        self._models: dict[int, _Model] = {}
        self._seen = -1  # the structure that they belong to
        self._asked = False
        self._late = -1  # a step in which a device measured non-finite values
        self._bad, self._was_bad = False, False  # in this step, and in the one before
        self._looked = False
        self._why_not = _NOT_CALLED
        self._recent = RecentFrames()
        self.written: list[Path] = []
        self.failed = 0

    @property
    def armed(self) -> bool:
        """Whether calls are kept."""
        if self._asked:
            return True
        return self._plan.when != "never" and len(self.written) < MAX_WRITTEN and self.failed < MAX_FAILED

    def ask(self) -> None:
        """Write the next step that is captured. Any thread may call it."""
        self._asked = True

    @property
    def _all(self) -> list[_Model]:
        """The called models, as they are now: another thread may call another one."""
        return list(self._models.values())

    # The training

    def entered(self, path: str, model: nn.Module, args: Any, keywords: dict[str, Any] | None) -> None:
        """Keep what a call begins with."""
        if not self.armed:
            return
        if keywords is None:
            self._why_not = f"torch {torch.__version__} hides the keyword arguments of calls"
            return
        if any(each.runs and each.ref() is not model for each in self._all):
            return  # a part of what is kept already
        tensors = list(find_tensors((args, keywords)))
        if is_traced() or not all(has_data(each) for _, each in tensors):
            self._why_not = "the model is traced, or its arguments are of a tensor class of their own"
            return
        conditions = autocast_types(), torch.is_grad_enabled()  # the block below may change both
        with _unseen():
            known = self._known(path, model)
            known.call = None  # the last micro-batch may be freed first
            known.call = Call(
                args=aliases_in(args),
                kwargs=aliases_in(keywords),
                training={},  # a model is pickled with its modes
                buffers=known.copies_of_buffers(),
                generators=device_generators(),
                autocast=conditions[0],
                grad_enabled=conditions[1],
                members=known.members,
                weight_versions=known.members.versions(),
                versions=versions_of(tensors),
            )
            known.runs = True

    def _known(self, path: str, model: nn.Module) -> _Model:
        if self._seen != self._structure():
            self._seen = self._structure()
            self._models.clear()
        known = self._models.pop(id(model), None)
        if known is None or known.ref() is not model:
            known = _Model(weakref.ref(model), path, Members(model))
        if len(self._models) >= MAX_MODELS:
            self._models.pop(next(iter(list(self._models))), None)  # the one that was called longest ago
        self._models[id(model)] = known
        return known

    def left(self, model: nn.Module, output: Any) -> None:
        """Keep what the call returned, and wait for its gradients."""
        known = self._models.get(id(model))
        if known is None or known.call is None or not known.runs:
            return
        known.runs = False
        call, limit = known.call, HELD_BYTES
        if is_traced():
            return
        with _unseen():
            outputs = [(place, each) for place, each in find_tensors(output) if has_data(each)]
            used = _bytes(each for _, each in outputs)
            if used > limit:
                limit = max(limit, _bytes(each for _, each in find_tensors((call.args, call.kwargs))))
            if used > limit:
                call.unkept.append(f"the outputs and their gradients, which take more than {limit >> 20} MiB")
                return
            for place, each in outputs:
                call.outputs[place] = alias_of(each)
                if each.requires_grad and not each.is_leaf:
                    hook_gradient(each, _Arrival(call, place))

    def look(self, first_bad: FirstBad, where: str) -> None:
        """Write the step if it is asked for, or if something is non-finite in it that was finite in the last one."""
        if not self.armed:
            return
        if self._asked:
            self._asked = False
            self._write("asked for", None)
        self._looked = True
        if self._plan.when != "error" or self._bad:
            return
        bad, late = first_bad(), self._late
        if bad is not None:
            reason = f"non-finite values in the {bad.kind} of {bad.module or ROOT}, found {where}"
        elif late >= 0:
            reason = (
                f"non-finite values in step {late:,}, found later, because reading them earlier waits for the device"
            )
        else:
            return
        self._bad, self._late = True, -1
        if not self._was_bad:
            self._write(reason, None if bad is None else bad.module)

    def end_step(self) -> None:
        """Let go of the step."""
        if self._asked and any(each.call is not None for each in self._all):
            self._asked = False
            self._write("asked for", None)
        if self._looked:
            self._looked, self._was_bad, self._bad = False, self._bad, False
        for each in self._all:
            each.call, each.runs = None, False

    def alarm(self, step: int) -> None:
        """Note that a device measured non-finite values in an earlier step."""
        self._late = step

    def fail(self, error: str) -> None:
        """Write the running step, which an exception ended."""
        if self._plan.when != "never" and self.armed:
            self._write(f"exception: {error}", None)

    def close(self) -> None:
        """Let go of everything."""
        self._models.clear()

    def remember(self, frame: Frame) -> None:
        """Keep the numbers of the newest steps."""
        if self._plan.when != "never":
            self._recent.add(frame, self.armed)

    # The capsule

    def _write(self, reason: str, module: str | None) -> None:
        known = self._of(module)
        model = None if known is None else known.ref()
        if known is None or known.call is None or model is None:
            self._miss(reason, self._why_not)
            return
        try:
            with unseen():
                path, size = self._save(known, model, known.call, reason)
        except Exception as error:
            self.failed += 1
            self._miss(reason, f"{type(error).__name__}: {error}")
            return
        self.written.append(path)
        removed = remove_old(path.parent)
        old = f" (The capsules of {removed} older runs were removed; {MAX_RUNS} are kept.)" if removed else ""
        saved = f"step {self._step():,} was saved ({size / 1e6:,.1f} MB): {reason}."
        replay = f"To find the operator and the line: hookcore replay {path}"
        self._emit("capsule", f"{saved} {replay}{old}", "info", known.path)

    def _save(self, known: _Model, model: nn.Module, call: Call, reason: str) -> tuple[Path, int]:
        weights = _bytes(each for each in known.members.weights() if each is not None)
        if weights > self._plan.max_bytes:
            raise CapsuleError(f"the weights take {weights:,} bytes, more than capsule_size={self._plan.max_bytes:,}")
        folder = self._plan.folder()
        prepare(folder)
        described = about(model, call, reason, self._step())
        described["changed"] += known.changed(call)
        described["frames"] = self._recent.steps
        frames = self._recent.packed() if described["frames"] else None
        path = path_of(folder, self._step())
        return path, write_capsule(path, described, step_of(model, call), self._plan.max_bytes, frames)

    def _of(self, module: str | None) -> _Model | None:
        """Return the called model that contains a module; without one, the model that was called last."""
        held = [each for each in self._all if each.call is not None]
        if module is not None:
            held = [each for each in held if each.contains(module)]
        return held[-1] if held else None

    def _miss(self, reason: str, why: str) -> None:
        self._emit("capsule-missed", f"step {self._step():,} was not saved: {why} ({reason})", "info", "")


class _Arrival:
    """Keeps the gradient that arrives at an output. The graph keeps this object alive, but not the call."""

    __slots__ = ("_call", "_place")
    __torch_unserializable__ = True

    def __init__(self, call: Call, place: str) -> None:
        self._call, self._place = weakref.ref(call), place

    @guarded
    def __call__(self, gradient: Tensor | None) -> None:
        call = self._call()
        if call is not None and isinstance(gradient, Tensor):
            with _unseen():
                call.saw_gradient(self._place, gradient)


def _unseen() -> AbstractContextManager[None]:
    """Hide what is done here from the user's modes, if there are any: aliases and copies are nothing to autograd."""
    return unseen() if dispatch_modes() or function_modes() else _NOTHING_TO_HIDE


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
