"""The step clock: derives steps from events of every loop, such as optimizer steps, backward passes, and resets.

Nothing here depends on what is captured, so steps have the same numbers under every setting. A step ends when an
optimizer with watched parameters has stepped, if these parameters got new gradients since the last step ended.
Otherwise the optimizer's values belong to the step that just ended. docs/how-it-works.md has a table of what counts as
a step in each kind of loop.

New gradients are noticed at a few parameters of each optimizer, the *witnesses*: their `.grad` is compared before and
after each backward pass. Nothing can free it in between, so equal means unchanged. If a single optimizer runs and no
scaler steps it, it doesn't matter which pass reached it, and nothing is compared.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.hooks.handle import STEP_LOOP
from hookcore.recorder.owners import Mark, Owner, marks_of, scales_until_now, spread, tensors_of, was_reset
from hookcore.recorder.parameters import Parameter, Parameters

WITNESSES: Final = 4  # of one optimizer
FIRST_WITNESSES: Final = 16  # of all watched parameters, while optimizers may still be unknown
FIRST_STEPS: Final = 64  # steps after which all optimizers are known
MANY_WITNESSES: Final = 512  # of an optimizer that a pass once reached without its witnesses
ALL_WITNESSES: Final = 128  # of all optimizers together, unless one needs more
ATTEMPTS: Final = 16  # resets of the gradients after which manual updates are assumed, even if none is seen
PASSES_WITHOUT_STEP: Final = 64  # after this, each pass counts as a step, even if the gradients are never reset
RECENT: Final = 256  # steps after which an optimizer that no longer steps is ignored
RENEW_EVERY: Final = 16  # steps of an optimizer after which its witnesses' tensors are looked up again
SCALER_STEPS: Final = 16  # an optimizer's first steps, and then one in this many, in which its scaler is searched for
SCALER_DEPTH: Final = 64  # frames up the stack
SCALER_NEAR: Final = 6  # in all other steps, because a loop may start to use a scaler at any time

_current_task: Callable[[], int] = torch._C._current_graph_task_id


class Host(Protocol):
    """The receiver of the clock's steps."""

    def end_step(self, skipped_by: GradScaler | None) -> None:
        """End the step, which this scaler may have skipped."""

    def begin_step(self) -> None:
        """Start the next step."""

    def hold_part(self) -> None:
        """Separate the data so far from the following, because it may become a step."""

    def release_parts(self, as_steps: bool, scales: Sequence[float] = ()) -> int:
        """Ship the held parts, as parts of the running step or as steps. Return the number of steps.

        `scales`: a scaler skipped these steps, and the loss was multiplied by these scales; NaN if unknown.
        """

    def find_model(self, optimizer: Optimizer) -> bool:
        """Return whether a model was found that owns what this optimizer steps: none of it is watched yet."""

    def read_parameters(self) -> None:
        """Read the gradients now, because no torch optimizer will step."""

    def emit(self, name: str, message: str) -> None:
        """Add an event to the next frame."""


class Clock:
    """Counts the steps of one watcher. The recorder calls it under its lock, outside of the user's modes."""

    def __init__(self, parameters: Parameters, host: Host) -> None:
        self._parameters = parameters
        self._host = host
        self.step = 0
        self.manual = False  # the user calls step()
        self.passes = 0  # backward passes that reached a watched parameter since the last step ended
        self.begins_late = False  # the forward pass of a step that begins now has already run
        self._due = False  # an optimizer stepped inside the running pass
        self._decided = False  # whether an optimizer ever stepped
        self._by_hand = 0  # passes per step, if no optimizer steps; 0 while unknown
        self._attempts = 0  # closed ones, while it is unknown who steps
        self._passed = False  # a pass has ended since the last step, whatever it reached
        self._saw_passes = False
        self._group: set[int] = set()  # optimizers that stepped since the last step ended, or ended it
        self._last: Owner | None = None
        self._alone: Owner | None = None  # the only optimizer, if passes needn't be compared
        self._owners: dict[int, Owner] = {}
        self._witnesses: list[Parameter] = []
        self._known = (-1, False)  # the number of parameters when the witnesses were chosen, and whether that was early
        self._marks: list[Mark] = []  # of the witnesses, before the running pass or after the last one
        self._versions: list[int] = []  # of the witnesses, after the last pass
        self._looked_at: list[Tensor] = []  # the witnesses' tensors, while a pass runs
        self._thread = 0  # that of the first pass
        self.many_threads = False  # a second thread has run a pass
        self._passed_in: set[int] = set()  # of many threads, those with a pass since they ended a step
        self._reached: set[int] = set()  # witnesses that got new gradients since the last step ended, by id(tensor)
        self._stacks: dict[int, list[tuple[int, int]]] = {}

    # -- optimizers -------------------------------------------------------------------------------------------------

    def step_begins(self, optimizer: Optimizer, closure: bool = False) -> Owner | None:
        """Return the owner, if this call is not inside another owner's step and steps watched parameters."""
        owner = self._owner_of(optimizer)
        if not owner.owns:
            return None
        stack = self._stacks.setdefault(threading.get_ident(), [])
        frames = _step_frames(all_of_them=bool(stack))
        if stack:
            stack[:] = [entry for entry in stack if entry[1] in frames[1:]]  # others raised and never ended
        stack.append((id(optimizer), frames[0] if frames else 0))
        if len(stack) > 1:
            return None
        if owner.steps % RENEW_EVERY == 0:
            owner.look_up()
        # Inside a backward pass, the gradients are those of that pass, which hasn't been announced yet.
        owner.inner_passes = closure
        owner.late = not closure and _current_task() == -1 and self._is_late(owner)
        if closure or not self._passed:  # else it is already known to step with new gradients
            owner.versions = [tensor._version for tensor in owner.seen]
        far = owner.steps < SCALER_STEPS or owner.steps % SCALER_STEPS == 0
        owner.find_scaler(SCALER_DEPTH if far else SCALER_NEAR)
        return owner

    def step_ended(self, optimizer: Optimizer) -> Owner | None:
        """Return the owner at the end of the call, as `step_begins` does."""
        ident = threading.get_ident()
        stack = self._stacks.get(ident)
        owner = self._owners.get(id(optimizer))
        if owner is None:
            return None
        if not owner.owns:
            # A closure may have run its model for the first time, inside the step that ends now.
            owner = self._owner_of(optimizer)
            owner.inner_passes, owner.late = True, False
            return owner if owner.owns and not stack else None
        if not stack or stack[-1][0] != id(optimizer):
            return None
        stack.pop()
        if stack:
            return None
        del self._stacks[ident]
        return owner

    @property
    def stepping(self) -> bool:
        """Return whether this thread is inside an optimizer's step."""
        return bool(self._stacks.get(threading.get_ident()))

    def count(self, owner: Owner) -> int:
        """Count a step of an optimizer. Return the step that it belongs to, or -1 if it changed nothing."""
        if owner.inner_passes:
            owner.late = self._is_late(owner)
        reached = self._has_reached(owner)
        fresh = not owner.late and (reached or self._passed or self._moved(owner))
        if self._passed and owner.ever_reached and not reached and self._alone is None:
            self._choose_witnesses(owner, MANY_WITNESSES)
        if not fresh and not self.step:
            return -1  # nothing to step with: some loops step once to silence a scheduler's warning
        if not self._decided:
            self._decide(owner.live_scaler())
        if not owner.steps:
            for other in self._owners.values():  # earlier passes may not have been compared
                other.after = marks_of(other.seen)
        step = self.step if fresh else self.step - 1
        owner.gap = max(1, step - owner.last_step) if owner.last_step >= 0 else 1
        owner.last_step = step
        owner.steps += 1
        if fresh:
            self._last = owner
            self.tick()
            self._group.clear()
        self._group.add(id(owner))
        owner.after = marks_of(owner.seen)
        if owner is not self._alone or owner.scaler is not None or owner.inside:
            self._alone = self._only_owner()
        return step

    def _only_owner(self) -> Owner | None:
        """Return the optimizer that alone determines the steps, if that is known."""
        if self.step < FIRST_STEPS or not self._decided or self.many_threads:
            return None
        found = None
        for owner in self._owners.values():
            if owner.owns and owner.steps:
                if found is not None:
                    return None
                found = owner
        return None if found is None or found.inside or found.scaler is not None else found

    def _decide(self, scaler: GradScaler | None) -> None:
        """Decide that an optimizer steps this model. Held data was skipped by its scaler, or is part of its step."""
        scales = scales_until_now(scaler, self._attempts) if scaler is not None else []
        self._decided, self._by_hand, self._attempts = True, 0, 0
        self.step += self._host.release_parts(as_steps=bool(scales), scales=scales)

    def _is_late(self, owner: Owner) -> bool:
        """Return whether it steps with the gradients of the last step, after another optimizer."""
        if self._has_reached(owner) or not self.step:
            return False
        if self._passed:  # a pass that its witnesses did not see
            return owner.ever_reached and self._last not in (owner, None)
        if not self._saw_passes:  # compiled as a whole, or with gradients that were set manually
            return bool(self._group) and id(owner) not in self._group
        return not owner.steps or owner.after == marks_of(owner.seen)

    def _has_reached(self, owner: Owner) -> bool:
        if self.many_threads:
            return threading.get_ident() in self._passed_in
        return not self._reached.isdisjoint(owner.keys)

    @staticmethod
    def _moved(owner: Owner) -> bool:
        """Return whether the step that just ended changed a weight."""
        return owner.versions != [tensor._version for tensor in owner.seen]

    def leave_to_user(self) -> None:
        """Let only the user end steps from now on."""
        self.manual = True

    def end_with_pass(self, owner: Owner) -> None:
        """End the step with the running backward pass, because the optimizer steps inside it."""
        owner.inside = self._due = True

    def tick(self, skipped_by: GradScaler | None = None) -> None:
        """End the step."""
        self.passes, self._passed = 0, False
        self._reached.clear()
        self._passed_in.discard(threading.get_ident())
        self._host.end_step(skipped_by)
        self.step += 1
        self._host.begin_step()

    def _owner_of(self, optimizer: Optimizer) -> Owner:
        groups = optimizer.param_groups
        # Enough to notice that parameters were added or replaced.
        newest = groups[-1]["params"] if groups else []
        state = (len(groups), len(newest), id(newest[-1]) if newest else 0, self._parameters.adopted)
        key = id(optimizer)
        owner = self._owners.get(key)
        if owner is None or owner.ref() is not optimizer:
            owner = Owner(optimizer)
            owners = self._owners
            owner.ref = weakref.ref(optimizer, lambda _: owners.pop(key, None))
            owners[key] = owner
        if owner.state != state:
            owned = self._parameters.owned(optimizer)
            if not owned and self._host.find_model(optimizer):
                owned = self._parameters.owned(optimizer)
            owner.owns = bool(owned)
            owner.state = (*state[:3], self._parameters.adopted)
            watched = {id(each) for each in self._witnesses}
            seen = [each for each in owned if id(each) in watched]
            owner.ever_reached = bool(seen) and self._alone is None
            owner.witnesses = seen
            if len(seen) < WITNESSES:
                self._choose_witnesses(owner, self._share())
            owner.look_up()
        return owner

    def _share(self) -> int:
        owners = sum(owner.owns for owner in self._owners.values())
        return max(1, min(WITNESSES, ALL_WITNESSES // max(1, owners)))

    def _choose_witnesses(self, owner: Owner, many: int) -> None:
        """Use this many of its parameters, evenly spread, including the first and the last, from the next pass on."""
        optimizer = owner.ref()
        owned = self._parameters.owned(optimizer) if optimizer is not None else []
        trainable = [each for each in owned if (tensor := each.tensor) is not None and tensor.requires_grad]
        chosen = {id(each): each for each in (*owner.witnesses, *spread(trainable, many))}
        self._known = (-1, False)
        if owner.steps or not owner.witnesses:
            owner.witnesses = list(chosen.values())
            owner.look_up()

    def optimizers(self) -> list[Optimizer]:
        """Return every optimizer that has stepped."""
        return [found for owner in list(self._owners.values()) if (found := owner.ref()) is not None]

    def scalers(self) -> list[GradScaler]:
        """Return the enabled scalers that step an optimizer."""
        owners = list(self._owners.values())
        return list({id(scaler): scaler for owner in owners if (scaler := owner.live_scaler())}.values())

    def known_scale(self) -> float | None:
        """Return the current loss scale, if there is one known scaler whose scale is not on another device."""
        scalers = self.scalers()
        if len(scalers) != 1:
            return None
        scale = scalers[0]._scale
        return float(scale) if isinstance(scale, Tensor) and scale.is_cpu else None

    def longest_gap(self) -> int:
        """Return how many consecutive steps contain a step of every active optimizer."""
        longest = 1
        for owner in self._owners.values():
            if owner.gap > longest and owner.steps and self.step - owner.last_step <= RECENT:
                longest = owner.gap
        return longest

    # -- backward passes --------------------------------------------------------------------------------------------

    def pass_begins(self) -> None:
        """Handle the start of a pass that accumulates gradients.

        Gradients are read only while a single thread has ever run a pass. Torch sets and frees `.grad` without the
        interpreter lock, so reading one that another thread trains with can crash the process.
        """
        ident = threading.get_ident()
        self._thread = self._thread or ident
        if ident != self._thread and not self.many_threads:
            self.many_threads = True
            self._looked_at, self._marks = [], []
            if self._passed or self._reached:
                self._passed_in.add(self._thread)
        if self.many_threads:
            return
        if self._alone is not None:
            self._looked_at, self._marks = [], []
            return
        if not self.stepping and not self.manual:
            self.begins_late = True
            self.notice_end()
            self.begins_late = False
        self._know_witnesses()
        self._looked_at = self._witness_tensors()
        self._marks = marks_of(self._looked_at)

    def pass_ended(self) -> None:
        """Handle the end of a pass, even if it raised."""
        self._passed = self._saw_passes = True
        if self.many_threads:
            self._passed_in.add(threading.get_ident())
        if self.many_threads:
            reached = True
        elif self._alone is not None:
            reached = True
            self._parameters.note_pass(self._alone.keys)
        else:
            reached = self._look_at_witnesses()
        if self._due:
            self._due = False
            if not self._decided:
                self._decide(None)
            self.tick()
        elif reached and not self.stepping and not self.manual:
            self.passes += 1
            if not self._decided:
                self._count_by_hand()

    def _look_at_witnesses(self) -> bool:
        tensors, before = self._looked_at, self._marks
        now = marks_of(tensors)
        self._looked_at, self._marks = [], now
        if not self._decided:
            self._versions = [tensor._version for tensor in tensors]
        reached: set[int] = set()
        if now != before:
            reached = {id(t) for t, old, new in zip(tensors, before, now, strict=True) if old != new}
            self._reached |= reached
            self._parameters.note_pass(reached)
        for owner in self._owners.values() if self._decided else ():
            owner.ever_reached = owner.ever_reached or not reached.isdisjoint(owner.keys)
            owner.after = list(now) if owner.seen is tensors else marks_of(owner.seen)
            if owner.scaler is not None and (scaler := owner.scaler()) is not None:
                owner.states = scaler._per_optimizer_states
        return bool(reached)

    def _witness_tensors(self) -> list[Tensor]:
        if self._known[1]:
            return tensors_of(self._witnesses)
        at_work = [owner for owner in self._owners.values() if owner.owns and not owner.inside]
        if len(at_work) == 1:
            return at_work[0].seen
        return [tensor for owner in at_work for tensor in owner.seen]

    def _know_witnesses(self) -> None:
        """Choose the witnesses of all optimizers and, while some may be unknown, a few of all parameters."""
        early = self.step < FIRST_STEPS or not self._decided
        if self._known == (self._parameters.adopted, early):
            return
        if self._known[1] and not early:
            for owner in self._owners.values():
                if len(owner.witnesses) <= FIRST_WITNESSES:
                    owner.witnesses = spread(owner.witnesses, self._share())
                    owner.look_up()
        self._known = (self._parameters.adopted, early)
        inside = {id(each) for owner in self._owners.values() if owner.inside for each in owner.witnesses}
        chosen = [each for owner in self._owners.values() if owner.owns for each in owner.witnesses]
        if early:
            trainable = [each for each in self._parameters.all() if (t := each.tensor) is not None and t.requires_grad]
            chosen += spread(trainable, FIRST_WITNESSES)
        self._witnesses = [each for key, each in {id(each): each for each in chosen}.items() if key not in inside]
        for owner in self._owners.values():
            if owner.owns and not owner.witnesses:
                owner.state = ()  # found again at its next step

    # -- steps that no optimizer ends -------------------------------------------------------------------------------

    def notice_end(self) -> bool:
        """Notice a step that ended without an optimizer: a scaler skipped it, or the weights were changed manually.

        Called where the next step may begin: before a pass, a module's run, or a logged value.
        """
        if (not self.passes and not self._by_hand) or self.many_threads or threading.get_ident() != self._thread:
            return False
        if self._decided:
            skipped = next((owner for owner in self._owners.values() if owner.owns and owner.scaler_attempted()), None)
            if skipped is not None:
                self.tick(skipped.live_scaler())
            return skipped is not None
        changed = self._weights_changed()
        if not changed and not self._was_reset():
            if self.begins_late and self._by_hand and not self.passes and self._marks:
                self._by_hand += 1  # the passes are micro-batches: more of them make a step
            return False
        self._marks, self._versions = [], []
        if self._by_hand:
            if self.passes:
                self._by_hand = self.passes
                self._end_by_hand()
            return True
        self._attempts += 1
        self._host.hold_part()
        # Gradients that are discarded while the weights stay unchanged: a scaler with too high a scale does this.
        if self._attempts >= (2 if changed else ATTEMPTS):
            self._steps_by_hand(max(1, self.passes // self._attempts))
            self.passes = 0
        return True

    @property
    def undecided(self) -> bool:
        """Return whether passes have ended and it is still unknown who steps."""
        return bool(self.passes) and not self._decided and not self._by_hand

    @property
    def may_have_skipped(self) -> bool:
        """Return whether a pass has ended whose step a scaler may skip."""
        return bool(self.passes) and any(owner.scaler is not None for owner in list(self._owners.values()))

    def _weights_changed(self) -> bool:
        tensors = tensors_of(self._witnesses)
        return len(tensors) == len(self._marks) and self._versions != [tensor._version for tensor in tensors]

    def _was_reset(self) -> bool:
        """Return whether the gradients were reset."""
        tensors = tensors_of(self._witnesses)
        return len(tensors) == len(self._marks) and any(map(was_reset, tensors, self._marks))

    def _count_by_hand(self) -> None:
        if self._by_hand:
            if self.passes >= self._by_hand:
                self._end_by_hand()
        elif self.passes >= PASSES_WITHOUT_STEP and not self._attempts:
            self._steps_by_hand(1)
            self._end_by_hand()

    def _steps_by_hand(self, passes: int) -> None:
        self._by_hand = passes
        self._host.emit("no-optimizer", "No torch optimizer steps this model: steps are counted by backward passes.")
        self.step += self._host.release_parts(as_steps=True)
        self._attempts = 0

    def _end_by_hand(self) -> None:
        self._host.read_parameters()
        self.tick()


def _step_frames(all_of_them: bool) -> list[int]:
    """Return the running calls of `Optimizer.step`, innermost first; only that one unless all are requested."""
    found: list[int] = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code in STEP_LOOP:
            found.append(id(frame))
            if not all_of_them:
                break
        frame = frame.f_back
    return found
