"""Keeps the running step of a watched training, and writes it to a capsule when something goes wrong."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.capsules.calls import (
    HELD_BYTES,
    NUMBERS,
    Arrival,
    Call,
    Counters,
    Held,
    KeptModel,
    NotHeldError,
    alias_of,
    aliases_in,
    autocast_types,
    has_data,
    is_traced,
    versions_of,
)
from hookcore.capsules.content import RecentFrames, about, step_of, write_capsule
from hookcore.capsules.entries import Members, Reason, bytes_of
from hookcore.capsules.late import LateStep, LateSteps
from hookcore.capsules.shares import Jump, UnknownPartsError, parts_of
from hookcore.config import Capsule, CapsuleOn
from hookcore.delivery.dashboard.capsules import (
    MAX_RUNS,
    path_of,
    prepare,
    remove_old,
    remove_unfinished,
)
from hookcore.errors import CapsuleError
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.copies import is_capturing
from hookcore.observe.finite import is_elsewhere
from hookcore.observe.plain import device_generators, unseen
from hookcore.recorder.calls.plans import BatchOf, FirstBad, Place, Routine
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import find_tensors
from hookcore.records import ROOT, Frame, Occasion
from hookcore.records.vocabulary import CAPSULE_MISSED, KIND_WORDS, counted

# Everything here runs between the user's own lines, in captured steps: it draws no random number, waits for no device,
# and copies nothing but the buffers that a model changes.

MAX_WRITTEN: Final = 3  # capsules of one run,
MAX_JUMPS: Final = 2  # and those of jumps of its loss
MAX_FAILED: Final = 3  # attempts
MAX_MODELS: Final = 8  # whose newest calls are kept
MAX_TURNS: Final = 16  # captured steps of other models, such as a GAN's other half
LATE: Final = "the step can't be repeated: its weights were updated before the value was known"
_DESCRIBED: Final = 1024  # samples, in the description of a capsule
_SAVED: Final = Reason("saved", "an earlier step of a device was saved, so no weights are copied any more")
_UNARMED: Final = Reason("not-held", "no more steps of this run are saved")
_NOT_CALLED: Final = "the training called no model that contains it, or its call was not held"


@dataclass(frozen=True, slots=True)
class Fired:
    """What was found in the running step."""

    what: str
    module: str | None


@dataclass(frozen=True, slots=True)
class _Parked:
    """A step of a device that is to be saved at the end of the running one, by the thread that trains."""

    kept: LateStep
    fired: Fired


@dataclass(frozen=True, slots=True)
class CapsulePlan:
    """When a run's capsules are written, and where."""

    when: Capsule
    folder: Callable[[], Path]
    max_bytes: int
    on: frozenset[CapsuleOn] = frozenset(("nonfinite", "spike"))
    saw_error: Callable[[Path], None] = lambda _: None  # takes the capsule of a step in which something went wrong,
    saw_jump: Callable[[Path], None] = lambda _: None  # and that of one whose loss has jumped


class CapsuleKeeper:
    """The keeper of one watch."""

    def __init__(self, plan: CapsulePlan, context: Context) -> None:
        self._plan, self._context, self._emit = plan, context, context.emit
        self._track = context.track  # which counts how often optimizers have updated any weights
        self._plans = context.plans
        self._models: dict[int, KeptModel] = {}
        self.newest: KeptModel | None = None  # the one that was called last
        self.met = 0  # changes of `_models`
        self._seen = -1  # the structure that they belong to
        self._asked = False
        self._occasion: Occasion | None = None  # the incident after which to save a step
        self._turns = 0  # captured steps to wait for
        self._tried = -1  # the newest step that it tried to save
        self._late = -1  # a step in which a device measured non-finite values, and that could not be saved
        self._late_tried = -1  # the newest step of a device that it tried to save
        self._bad, self._was_bad = False, False  # in this step, and in the one before
        self._looked = False
        self._fired: Fired | None = None  # why to save the running step, captured or not
        self._why_not = _NOT_CALLED
        self._jump: Jump | None = None  # of the running step's loss
        self._call_batch: BatchOf = lambda _: (None, "")
        self._jumps = 0  # saved ones
        self.late_steps = LateSteps(plan.max_bytes)
        self._parked: _Parked | None = None
        self._recent = RecentFrames()
        self.written: list[Path] = []
        self.failed = 0

    @property
    def armed(self) -> bool:
        """Whether calls are kept."""
        return self._asked or (self._plan.when != "never" and self._may_write)

    @property
    def _may_write(self) -> bool:
        return len(self.written) - self._jumps < MAX_WRITTEN and self.failed < MAX_FAILED

    def ask(self, occasion: Occasion | None = None) -> bool:
        """Request the next captured step. After an incident, this has an effect only if no later step was tried.

        Any thread may call it. A server that was restarted may ask again.
        """
        if occasion is None:
            self._asked = True
            return True
        if self._plan.when != "error" or occasion.step <= self._tried:
            return False
        if not self._may_write:
            saved = len(self.written)
            why = f"{counted(saved, 'step')} of this run {'has' if saved == 1 else 'have'} already been saved"
            why += f", and saving {counted(self.failed, 'other')} failed" if self.failed else ""
            self._miss(occasion.reason, why)
            return False
        self._occasion, self._turns = occasion, MAX_TURNS
        return True

    @property
    def models(self) -> list[KeptModel]:
        """The called models, as they are now: another thread may call another one."""
        return list(self._models.values())

    # The training

    def entered(self, place: Place, model: nn.Module, args: Any, keywords: dict[str, Any] | None) -> None:
        """Keep the arguments and the state at the start of a call."""
        if not self.armed:
            return
        if keywords is None:
            self._why_not = f"torch {torch.__version__} hides the keyword arguments of calls"
            return
        if any(each.runs and each.ref() is not model for each in self.models):
            return  # a part of a model that is already kept
        tensors = list(find_tensors((args, keywords)))
        if is_traced() or not all(has_data(each) for _, each in tensors):
            self._why_not = "the model is being traced, or its arguments are of a custom tensor class"
            return
        conditions = autocast_types(), torch.is_grad_enabled()  # the block below may change both
        with unseen():
            known = self._known(place, model)
            last = None if known.call is None else known.call.entry  # whose copies may serve this call, too
            known.call = None  # the last micro-batch may be freed first
            known.is_late = known.is_late or _is_late(known.members.first_weight())
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
                numbers=known.counters.at_call(),
                entry=self.late_steps.enter(known, last, self._track.updates) if known.is_late else None,
            )
            known.runs = True

    def hold(self, place: Place, model: nn.Module, args: Any) -> None:
        """Hold a call of an uncaptured step by reference, before it runs."""
        known = self._models.get(id(model))
        if known is None or self._seen != self._plans.changes or known.ref() is not model or len(self._models) > 1:
            known = self._known(place, model)
        last = None if known.held is None else known.held.entry  # whose copies may serve this call, too
        known.held = None  # the last micro-batch may be freed first
        try:
            known.held = held = Held(args, self._track.updates, known.counters.at_call())
        except NotHeldError as error:
            self._why_not = str(error)
            return
        if known.is_late:
            held.entry = self.late_steps.enter(known, last, self._track.updates)

    def returned(self, model: nn.Module, kwargs: dict[str, Any] | None, output: Any) -> None:
        """Hold what a held call returned, and wait for its gradients."""
        known = self._models.get(id(model))
        if known is not None and known.held is not None:
            known.held.returned(kwargs, output)

    def routine(self, model: nn.Module) -> Routine | None:
        """Return how the next calls of a model are held; None if its numbers change, or aren't known now."""
        known, kept = self.newest, self.kept
        if known is None or kept is None or known.ref() is not model or not (calls := known.counters.settled):
            return None
        how = Held, Arrival, self._plans, self._seen, NUMBERS, HELD_BYTES
        return Routine(known, self.met, *how, calls, known.counters.skip)

    def miss(self, why: str) -> None:
        """Note why no call of this step is held."""
        self._why_not = why

    def _known(self, place: Place, model: nn.Module) -> KeptModel:
        if self._seen != self._plans.changes:
            self._seen = self._plans.changes
            self._models.clear()
            self.newest = None
            self.met += 1
        known = self._models.pop(id(model), None)
        if known is None or known.ref() is not model:
            known = KeptModel(weakref.ref(model), place.path, place.below, Members(model), Counters(model))
            known.is_late = any(map(_is_late, known.members.weights()))
            self.met += 1
        if len(self._models) >= MAX_MODELS:
            self._models.pop(next(iter(list(self._models))), None)  # the one that was called longest ago
        self._models[id(model)] = self.newest = known
        return known

    def left(self, model: nn.Module, output: Any) -> None:
        """Keep the outputs of the call, and wait for their gradients."""
        known = self._models.get(id(model))
        if known is None or known.call is None or not known.runs:
            return
        known.runs = False
        call, limit = known.call, HELD_BYTES
        if is_traced():
            return
        with unseen():
            outputs = [(place, each) for place, each in find_tensors(output) if has_data(each)]
            used = bytes_of(each for _, each in outputs)
            if used > limit:
                limit = max(limit, bytes_of(each for _, each in find_tensors((call.args, call.kwargs))))
            if used > limit:
                call.unkept.append(f"the activations and their gradients, which take more than {limit >> 20} MiB")
                return
            for place, each in outputs:
                call.outputs[place] = alias_of(each)
                if each.requires_grad and not each.is_leaf:
                    hook_gradient(each, Arrival(call, place))

    @property
    def has_fired(self) -> bool:
        """Whether the running step is to be saved as soon as its gradients have arrived."""
        return self._fired is not None or self._jump is not None

    def fire(self, what: str, module: str | None) -> bool:
        """Save the running step, captured or not, at the next look: something in it became non-finite.

        Return whether it will be tried.
        """
        if not self.armed or self._plan.when != "error" or self._bad or "nonfinite" not in self._plan.on:
            return False
        self._fired = self._fired or Fired(what, module)
        return True

    def jump(self, loss: Tensor, what: str, limit: float, batch_of: BatchOf) -> bool:
        """Save the running step, whose loss has jumped above the limit, as soon as its gradients have arrived."""
        wanted = self._plan.when == "error" and "spike" in self._plan.on and self._jumps < MAX_JUMPS
        if not wanted or not self.armed or self._jump is not None or any(each.is_late for each in self.models):
            return False
        parts, why = None, ""
        try:
            with unseen():
                parts = parts_of(loss)
        except UnknownPartsError as error:
            why = str(error)
        except Exception as error:  # of a tensor class of the user, or a graph that is freed
            why = f"{type(error).__name__}: {error}"
        self._jump, self._call_batch = Jump(what, limit, parts, why), batch_of
        return True

    def look(self, first_bad: FirstBad, where: str) -> None:
        """Write the step if it is asked for, or if something is non-finite in it that was finite in the last one."""
        if not self.armed:
            return
        self._give(is_end=False)
        self._looked = True
        if self._plan.when != "error" or self._bad:
            return
        bad, late = first_bad(), self._late
        if bad is not None:
            reason = f"non-finite values in the {KIND_WORDS[bad.kind]} of {bad.module or ROOT}, found {where}"
        elif self._fired is not None:
            self.settle(where)
            return
        elif late >= 0:
            reason = f"non-finite values in step {late:,}; {LATE}, so this is a later step"
        else:
            return
        self._bad, self._late, self._fired = True, -1, None
        if not self._was_bad:
            self._write(reason, None if bad is None else bad.module, is_error=bad is not None)

    def settle(self, where: str) -> None:
        """Write the step if something in it became non-finite: now its gradients have arrived."""
        fired, jump, self._fired, self._jump = self._fired, self._jump, None, None
        if jump is not None and fired is None and not self._bad:
            self._write(f"{jump.what}, found {where}", None, jump=jump)
        if fired is not None and not self._bad:
            self._bad = self._looked = True
            if not self._was_bad:
                self._write(f"{fired.what}, found {where}", fired.module, is_error=True)

    @property
    def kept(self) -> tuple[KeptModel, ...] | None:
        """The models whose calls are held: what each holds is its attribute `held`.

        None if their steps stay held until a device has said whether they are finite.
        """
        known = tuple(self.models)
        return None if self._parked is not None or any(each.is_late for each in known) else known

    def end_step(self) -> None:
        """Release the step."""
        if self._parked is not None and not is_capturing():
            self.settle_late()
        models = self._models
        if not models and not self._looked:
            return
        self._jump = None  # the pass has raised
        if self._fired is not None:
            self._track.count_update()  # by the script itself, if no optimizer was seen
            self.settle("at the end of the step")
        if self._looked:
            self._looked, self._was_bad, self._bad = False, self._bad, False
        has_calls = False
        for each in self.models if len(models) > 1 else models.values():
            each.held = None
            has_calls = has_calls or each.call is not None
        if has_calls:
            self._give(is_end=True)
            for each in self.models:
                each.call, each.runs = None, False

    def _give(self, is_end: bool) -> None:
        """Write the step if it was asked for; after an incident, the first one that calls the model of its culprit."""
        occasion = self._occasion
        if occasion is not None and self._awaits(occasion.step):
            return
        if occasion is not None and (self._of(occasion.module) is not None or (is_end and self._turns <= 0)):
            self._occasion = None
            self._write(occasion.reason, occasion.module, occasion, is_error=True)
        self._turns -= is_end
        if self._asked:
            self._asked = False
            if self._tried != self._context.step:
                self._write("asked for", None)

    def _awaits(self, step: int) -> bool:
        """Return whether a device has yet to say whether this step was finite: then that step itself may be saved."""
        return self._parked is not None or self.late_steps.of_step(step) is not None

    def defer(self) -> LateStep | None:
        """Return what makes the running step repeatable, to be held until its values are known; None if unarmed."""
        if self._plan.when != "error" or not self.armed:
            return None
        return self.late_steps.keep(self._context.step, self.models, self._why_not)

    def fire_late(self, kept: LateStep, what: str, module: str | None) -> None:
        """Save a step that a device has computed by now, at the end of the running one. Called on any thread."""
        if not self._may_write or kept.step <= self._late_tried:
            return
        if kept.of(module) is not None:
            self._parked = _Parked(kept, Fired(what, module))
            self._tried = max(self._tried, kept.step)
            if self._occasion is not None and self._occasion.step >= kept.step:
                self._occasion = None  # a consequence
        else:
            self._miss_late(kept.step, what, kept.why)

    def alarm(self, step: int) -> None:
        """Handle a captured step of which a device measured non-finite values. It is over. Called on any thread."""
        if self._plan.when != "error" or not self.armed or step <= self._late_tried:
            return
        what = "non-finite values that a device measured"
        if (kept := self.late_steps.of_step(step)) is not None:
            self.fire_late(kept, what, None)
        elif self._parked is None or self._parked.kept.step != step:
            text = "its loss and the gradients that were looked at were finite, so its weights were not kept"
            self._miss_late(step, what, Reason("looked-finite", text))

    def settle_late(self) -> None:
        """Write the step that a device has computed by now."""
        parked, self._parked = self._parked, None
        if parked is None or not self._may_write or parked.kept.step <= self._late_tried:
            return
        kept, fired = parked.kept, parked.fired
        found = kept.of(fired.module)
        self._late_tried = kept.step
        if found is None:
            self._miss_late(kept.step, fired.what, kept.why)
            return
        known, call = found
        reason = f"{fired.what}, known in step {self._context.step:,}"
        if self._write_call(known, lambda model: known.late_call(model, call), reason, kept.step):
            self.late_steps.stop(_SAVED)

    def _miss_late(self, step: int, what: str, why: Reason) -> None:
        self._late = self._late_tried = step
        self._miss(what, f"{LATE}, and {why.text}", step, why=why.code, because=why.text)

    def fail(self, error: str) -> None:
        """Write the running step, which an exception ended."""
        if self._plan.when != "never" and self.armed:
            self._write(f"exception: {error}", None)

    def close(self) -> None:
        """Release everything."""
        self._models.clear()
        self.late_steps.stop(_UNARMED)
        self.newest = None

    def remember(self, frame: Frame) -> None:
        """Keep the numbers of the newest steps."""
        if self._plan.when != "never":
            self._recent.add(frame, self.armed)

    # The capsule

    def _write(
        self,
        reason: str,
        module: str | None,
        occasion: Occasion | None = None,
        is_error: bool = False,
        jump: Jump | None = None,
    ) -> None:
        if jump is None:  # which leaves room for the step that an incident asks for
            self._tried = self._context.step
        known = self._of(module, occasion is None)
        if known is None:
            self._miss(reason, self._why_not)
            return
        make = partial(self._running_call, known)
        self._write_call(known, make, reason, self._context.step, occasion, is_error, jump)

    def _running_call(self, known: KeptModel, model: nn.Module) -> Call:
        return known.call or known.held_call(model, self._track.updates)

    def _write_call(
        self,
        known: KeptModel,
        make: Callable[[nn.Module], Call],
        reason: str,
        step: int,
        occasion: Occasion | None = None,
        is_error: bool = True,
        jump: Jump | None = None,
    ) -> bool:
        """Write a call of a model. Return whether that worked."""
        model = known.ref()
        if model is None:
            self._miss(reason, self._why_not, step)
            return False
        try:
            with unseen():
                path, size = self._save(known, model, make(model), reason, step, occasion, jump)
        except Exception as error:
            self.failed += 1
            self._miss(reason, f"{type(error).__name__}: {error}", step)
            return False
        finally:
            if not self._may_write:
                self.late_steps.stop(_UNARMED)
        self.written.append(path)
        self._jumps += jump is not None
        removed = remove_old(path.parent)
        old = f" (The capsules of {removed} older runs were removed; {MAX_RUNS} runs keep theirs.)" if removed else ""
        left = remove_unfinished()
        old += f" (Removed {counted(left, 'unfinished file')} of killed processes.)" if left else ""
        saved = f"step {step:,} was saved ({size / 1e6:,.1f} MB): {reason}."
        finds = "the operator and the line" if jump is None else "the sample that holds the loss"
        replay = f"To find {finds}, run: hookcore replay {path}"
        self._emit("capsule", f"{saved} {replay}{old}", "info", known.path, at=step)
        if jump is not None:
            self._plan.saw_jump(path)
        elif is_error:
            self._plan.saw_error(path)
        return True

    def _save(
        self,
        known: KeptModel,
        model: nn.Module,
        call: Call,
        reason: str,
        step: int,
        occasion: Occasion | None,
        jump: Jump | None,
    ) -> tuple[Path, int]:
        weights = bytes_of(each for each in known.members.weights() if each is not None)
        if weights > self._plan.max_bytes:
            raise CapsuleError(f"the weights take {weights:,} bytes, more than capsule_size={self._plan.max_bytes:,}")
        folder = self._plan.folder()
        prepare(folder)
        described = about(model, call, reason, step)
        if call is known.call:
            described["changed"] += known.changed(call)
        described["path"], described["below"] = known.path, known.below
        described["frames"] = self._recent.steps(step)
        if occasion is not None:
            described["occasion"] = asdict(occasion)
            described["reason"] += f"; this is step {step:,}, with the weights {described['weights']}"
        frames = self._recent.packed(step) if described["frames"] else None
        path = path_of(folder, step)
        contents = step_of(model, call)
        if jump is not None:
            batch, why = self._call_batch((*call.args, *call.kwargs.values()))
            contents["jump"] = replace(jump, batch=batch, why_no_ids=why).packed()
            described["samples"] = [] if batch is None else list(batch.ids[:_DESCRIBED])
        return path, write_capsule(path, described, contents, self._plan.max_bytes, frames, call.weights)

    def _of(self, module: str | None, may_be_held: bool = False) -> KeptModel | None:
        """Return the called model that contains a module; without one, the model that was called last."""
        held = [each for each in self.models if each.call is not None or (may_be_held and each.held is not None)]
        held.sort(key=lambda each: 0.0 if each.held is None else each.held.at)  # else in the order of their calls
        if module is not None:
            held = [each for each in held if each.contains(module)]
        return held[-1] if held else None

    def _miss(self, reason: str, text: str, step: int | None = None, **facts: str) -> None:
        missed = self._context.step if step is None else step
        self._emit(CAPSULE_MISSED, f"step {missed:,} was not saved: {text} ({reason})", "info", "", facts, missed)


def _is_late(weight: Tensor | None) -> bool:
    """Return whether a weight is on a device, which tells late whether a step was finite."""
    return weight is not None and is_elsewhere(weight)
