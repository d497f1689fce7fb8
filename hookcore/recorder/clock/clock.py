"""The step clock: derives steps from events of every loop, such as optimizer steps, backward passes, and scalers."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence, Set
from operator import attrgetter
from typing import Any, Final, Literal, Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.hooks.handle import STEP_LOOP
from hookcore.hooks.internals import current_graph_task
from hookcore.recorder.clock.owners import Comparison, Fate, Owner, Owners, scales_until_now
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameters

# The optimizers' steps that are running, because one optimizer may call another one's step.

_LOOPS: Final = frozenset(code.co_name for code in STEP_LOOP)  # code is hashed with all its constants


class Nesting:
    """The running steps of each thread. Only the outermost one can end a step of the training."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[tuple[int, int]]] = {}  # by thread: id(optimizer) and that of its call's frame

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside an optimizer's step."""
        return self.outermost != 0

    @property
    def outermost(self) -> int:
        """The id of the optimizer whose step this thread runs, the outermost one if they are nested; 0 if none."""
        stack = self.stacks.get(threading.get_ident())
        if stack:
            frames = _step_frames(all_of_them=True)
            stack[:] = [entry for entry in stack if entry[1] in (0, *frames)]  # others raised and never ended
        return stack[0][0] if stack else 0

    def enter(self, optimizer: Optimizer) -> bool:
        """Start a step. Return whether it is the outermost one."""
        stack = self.stacks.setdefault(threading.get_ident(), [])
        frames = _step_frames(all_of_them=bool(stack))
        if stack:
            stack[:] = [entry for entry in stack if entry[1] in frames[1:]]  # others raised and never ended
        stack.append((id(optimizer), frames[0] if frames else 0))
        return len(stack) == 1

    def leave(self, optimizer: Optimizer) -> bool:
        """End a step. Return whether it is the innermost that was started, and the outermost."""
        ident = threading.get_ident()
        stack = self.stacks.get(ident)
        if not stack or stack[-1][0] != id(optimizer):
            return False
        stack.pop()
        if stack:
            return False
        del self.stacks[ident]
        return True


def runs_step() -> bool:
    """Return whether this thread is inside an optimizer's step. Its closure may run its model for the first time."""
    return bool(_step_frames(all_of_them=False))


def _step_frames(all_of_them: bool) -> list[int]:
    """Return the running calls of `Optimizer.step`, innermost first; only that one unless all are requested."""
    found: list[int] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _LOOPS and frame.f_code in STEP_LOOP:
            found.append(id(frame))
            if not all_of_them:
                break
        frame = frame.f_back
    return found


class Reach:
    """Compares the witnesses before and after each pass, unless a single optimizer is known to be alone.

    It reads gradients only while a single thread has ever run a pass. Torch sets and frees `.grad` without the
    interpreter lock, so reading one that another thread trains with can crash the process. Each thread's passes then
    belong to the optimizer that steps in it.
    """

    def __init__(self, owners: Owners, parameters: Parameters) -> None:
        self._owners = owners
        self._parameters = parameters
        self.comparison = Comparison()
        self.passed = False  # a pass has ended since the last step, whatever it reached
        self.saw_passes = False  # a pass has ended, ever
        self.fate: Fate = "kept"  # of the gradients of the step's earlier passes, when the running pass began
        self.follows_fate = True  # whether it is needed in this step
        self.many_threads = False  # a second thread has run a pass
        self._thread = 0  # that of the first pass
        self._passed_in: set[int] = set()  # of many threads, those with a pass since they ended a step
        self._keys: set[int] = set()  # witnesses that got new gradients since the last step ended, by id(tensor)

    @property
    def is_sure(self) -> bool:
        """Whether this thread runs all passes."""
        return not self.many_threads and threading.get_ident() == self._thread

    @property
    def is_quiet(self) -> bool:
        """Return whether no pass has ended in this step, and this thread runs all passes."""
        return self.is_sure and not self.passed and not self._keys

    def resume(self, passed: bool, reached: Set[int]) -> None:
        """Take over what the passes of the running step have reached, by id."""
        self.passed, self._keys, self.fate = passed, set(reached), "kept"

    def pass_begins(self, alone: Owner | None) -> bool:
        """Note the start of a pass. If this returns True, call `compare` to compare its witnesses."""
        ident = threading.get_ident()
        self._thread = self._thread or ident
        if ident != self._thread and not self.many_threads:
            self.many_threads = True
            self.comparison.let_go()
            if self.passed or self._keys:
                self._passed_in.add(self._thread)
        if self.many_threads:
            return False
        if alone is not None:
            self.fate = self.comparison.fate_of(alone.witnesses.tensors) if self.passed else "kept"
            self.comparison.skip()
        return alone is None

    def compare(self, early: bool) -> None:
        """Look at the witnesses before the pass."""
        compared = self._owners.tensors_to_compare()
        self.fate = self.comparison.fate_of(compared, self._keys) if self.passed else "kept"
        self._owners.choose_witnesses(early)
        self.comparison.begin(self._owners.tensors_to_compare())

    def reaches(self, alone: Owner | None) -> bool:
        """Return whether the running pass has reached a witness, as far as is known."""
        return self.many_threads or alone is not None or self.comparison.differs

    def pass_ended(self, alone: Owner | None, decided: bool) -> bool:
        """Note the end of a pass, even if it raised. Return whether it reached a witness, as far as is known."""
        self.passed = self.saw_passes = True
        if self.many_threads:
            self._passed_in.add(threading.get_ident())
            return True
        if alone is not None:
            self.comparison.mark(alone.witnesses.tensors if self.follows_fate else [])
            self._parameters.note_pass(alone.witnesses.keys)
            return True
        tensors, now, reached = self.comparison.end(with_weights=not decided)
        if reached:
            self._keys |= reached
            self._parameters.note_pass(reached)
        for owner in self._owners if decided else ():
            owner.witnesses.note_reached(reached)
            owner.witnesses.explain(now if owner.witnesses.tensors is tensors else None)
            owner.scaler.note_pass(owner.ref())
        return bool(reached)

    def has(self, owner: Owner, alone: Owner | None) -> bool:
        """Return whether an optimizer's parameters have got new gradients."""
        if self.many_threads:
            return threading.get_ident() in self._passed_in
        if owner is alone:
            return self.passed
        return not self._keys.isdisjoint(owner.witnesses.keys)

    def end_step(self) -> None:
        """Forget the passes of the step, in this thread."""
        self.passed = False
        if self.many_threads:
            self._passed_in.discard(threading.get_ident())
        if self._keys:
            self._keys.clear()
            for owner in self._owners:
                owner.scaler.forget_pass()


# Nothing here depends on what is captured, so steps have the same numbers under every setting. A step ends when an
# optimizer with watched parameters has stepped, if these parameters got new gradients since the last step ended.
# Otherwise the optimizer's values belong to the step that just ended. docs/how-it-works.md has a table of what counts
# as a step in each kind of loop, and docs/architecture.md draws the states.
#
# New gradients are noticed at a few parameters of each optimizer, the *witnesses*: their `.grad` is compared before and
# after each backward pass. Nothing can free it in between, so equal means unchanged. If a single optimizer runs and no
# scaler steps it, it doesn't matter which pass reached it, and nothing is compared but what became of the gradients
# between two passes of a step.

FIRST_STEPS: Final = 64  # steps after which all optimizers are known
ATTEMPTS: Final = 16  # resets of the gradients after which manual updates are assumed, even if none is seen
PASSES_WITHOUT_STEP: Final = 64  # without any optimizer, each pass then counts as a step, even if nothing is reset
RENEW_EVERY: Final = 16  # steps of an optimizer after which its witnesses' tensors are looked up again
SCALER_STEPS: Final = 16  # an optimizer's first steps, and then one in this many, in which its scaler is searched for
SCALER_DEPTH: Final = 64  # frames up the stack
SCALER_NEAR: Final = 7  # in all other steps, because a loop may start to use a scaler at any time
MAX_WAITING: Final = 256  # calls that wait for the end of a step

Ends = Literal["unknown", "optimizer", "hand"]  # what ends steps, unless the user does: an optimizer's step, or passes


class Boundary:
    """Calls that wait for the end of a step. Their exceptions leave the training step, so they catch others."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def put(self, call: Callable[[], None]) -> bool:
        """Queue a call, from any thread. Return False if too many are waiting."""
        if len(self.waiting) >= MAX_WAITING:
            return False
        self.waiting.append(call)
        return True

    def run(self) -> None:
        """Make all calls that wait. If one raises, the others wait for the end of the next step."""
        while self.waiting:
            try:
                call = self.waiting.popleft()
            except IndexError:  # another thread that trains took it
                return
            call()


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

    def find_model(self, optimizer: Optimizer, may_run: bool) -> bool:
        """Return whether a model was found that owns what this optimizer steps. `may_run`: it may be found later."""

    def read_parameters(self) -> None:
        """Read the gradients now, because no torch optimizer will step."""


class Clock:
    """Counts the steps of one watcher. The recorder calls it under its lock, outside of the user's modes."""

    def __init__(self, context: Context, host: Host) -> None:
        self.owners, self.track = context.owners, context.track
        self._parameters, self._host, self._emit = context.parameters, host, context.emit
        self._parameters.when_gone = self._release
        self.boundary = Boundary()
        self.manual = False  # only the user ends steps, by `watcher.step()`
        self.passes = 0  # backward passes that reached a watched parameter since the last step ended
        self.reach = Reach(self.owners, self._parameters)
        self.begins_late = False  # the forward pass of a step that begins now has already run
        self.ends_with_pass = False  # an optimizer stepped inside the running pass
        self._ends: Ends = "unknown"
        self._by_hand = 0  # passes per step, if no optimizer steps
        self._attempts = 0  # closed ones, while it is unknown what ends steps
        self._group: set[int] = set()  # optimizers that stepped since the last step ended, or ended it
        self.last_owner: Owner | None = None  # the optimizer that ended the last step, if one did
        self.alone: Owner | None = None  # the only optimizer, if passes needn't be compared
        self._ending: Owner | None = None  # whose step ends a step of the training right now
        self._has_strays = False
        self.nesting = Nesting()
        self._passed_inside: set[int] = set()  # threads with a pass inside the optimizer's step that they run

    def _go_to(self, step: int) -> None:
        self.track.step = step

    # The number of the running step, also while the extension counts. It is read so often that no Python is called.
    step = property(attrgetter("track.step"), _go_to)

    # -- optimizers -------------------------------------------------------------------------------------------------

    def step_begins(self, optimizer: Optimizer, closure: bool = False) -> Owner | None:
        """Return the owner, if this call is not inside another owner's step and steps watched parameters."""
        owner = self.owners.meet(optimizer, self._host.find_model, self.alone is None, closure)
        if not owner.owns or not self.nesting.enter(optimizer):
            return None
        if owner.steps % RENEW_EVERY == 0:
            owner.witnesses.look_up()
        self._passed_inside.discard(threading.get_ident())
        owner.inner_passes = closure = closure or owner.runs_passes
        # Inside a backward pass, the gradients are those of that pass, which hasn't been announced yet.
        owner.late = not closure and current_graph_task() == -1 and self._is_late(owner)
        if closure or not self.reach.passed:  # else it is already known to step with new gradients
            owner.witnesses.note_weights()
        far = owner.steps < SCALER_STEPS or owner.steps % SCALER_STEPS == 0
        owner.scaler.find(SCALER_DEPTH if far else SCALER_NEAR)
        return owner

    def step_ended(self, optimizer: Optimizer) -> Owner | None:
        """Return the owner at the end of the call, as `step_begins` does."""
        owner = self.owners.get(optimizer)
        if owner is None:
            return None
        if not owner.owns:
            # A closure may have run its model for the first time, inside the step that ends now.
            owner = self.owners.meet(optimizer, self._host.find_model, self.alone is None)
            owner.inner_passes, owner.late = True, False
            return owner if owner.owns and not self.nesting.is_inside else None
        if not self.nesting.leave(optimizer):
            return None
        if threading.get_ident() in self._passed_inside and not owner.inner_passes:
            owner.inner_passes = owner.runs_passes = True  # though it was given no closure
        return owner

    @property
    def compares_passes(self) -> bool:
        """Return whether it is known of each pass whether it reached a watched parameter."""
        return self.alone is None and not self.reach.many_threads

    @property
    def reaches(self) -> bool:
        """Return whether the pass that ends has reached a watched parameter, as far as is known."""
        return self.reach.reaches(self.alone)

    def note_stray(self) -> None:
        """Compare all passes from now on: some of this training reach no watched parameter."""
        self._has_strays, self.alone = True, None

    @property
    def stepping(self) -> bool:
        """Return whether this thread is inside an optimizer's step."""
        return bool(self.nesting.stacks) and self.nesting.is_inside

    @property
    def outermost(self) -> Owner | None:
        """Return the optimizer whose step this thread is inside, the outermost one if several are nested."""
        return self.owners.with_id(self.nesting.outermost)

    def find_steady(self) -> list[Owner]:
        """Return the optimizers at work if one has just ended a step as expected, and nothing has happened since."""
        last, alone = self._ending, self.alone
        if (
            last is None
            or self._ends != "optimizer"
            or (self.manual or self.passes or self.ends_with_pass or self._passed_inside or self.nesting.stacks)
            or not self.reach.is_quiet
        ):
            return []
        if alone is not None:
            is_expected = alone is last and alone.gap(self.step) == 1 and not alone.scaler.found
            return [alone] if is_expected and not (alone.runs_passes or self.reach.comparison.is_on) else []
        owners = self.owners.find_compared()
        is_expected = last in owners and all(each.is_expected for each in owners)
        return owners if is_expected and (self._has_strays or self.owners.only_one() is None) else []

    def follow(self, owners: Sequence[Owner], turns: Sequence[tuple[int, int]], step: int) -> None:
        """Count steps of optimizers, given by place: each ended a step of the training, or joined the one before.

        `step`: the one that was running before the first of them.
        """
        if len(owners) == 1 and turns.count((0, 0)) == len(turns) > 1:  # one optimizer ended each step
            owners[0].count_many(step, len(turns) - 1)
            step, turns = step + len(turns) - 1, turns[-1:]
        for place, joins in turns:
            owner = owners[place]
            owner.count(step - joins)
            if not joins:
                step += 1
                owner.ended += 1
                self.last_owner = owner
                self._group.clear()
            self._group.add(id(owner))

    def count(self, owner: Owner) -> int:
        """Count a step of an optimizer. Return the step that it belongs to, or -1 if it changed nothing."""
        if owner.inner_passes:
            owner.late = self._is_late(owner)
        reached = self.reach.has(owner, self.alone)
        fresh = not owner.late and (reached or self.reach.passed or owner.witnesses.weights_moved())
        if self.reach.passed and owner.witnesses.were_reached and not reached and self.alone is None:
            self.owners.add_witnesses(owner)
        if not fresh and not self.step:
            return -1  # nothing to step with: some loops step once to silence a scheduler's warning
        if self._ends != "optimizer":
            self._decide(owner.scaler.live())
        # Gradients may have been clipped since the last pass, or not compared before: now they belong to this step.
        of_all = (fresh or not owner.steps) and owner is not self.alone
        step: int = self.step if fresh else self.step - 1
        owner.count(step)
        if fresh:
            owner.ended += 1
            self.last_owner = self._ending = owner
            self.tick()
            self._ending = None
            self._group.clear()
        self._group.add(id(owner))
        for each in () if self.reach.many_threads else self.owners if of_all else (owner,):
            each.witnesses.explain()
        if owner is not self.alone or owner.scaler.found or owner.inside:
            is_known = self.step >= FIRST_STEPS and not self.reach.many_threads and not self._has_strays
            self.alone = self.owners.only_one() if is_known else None
        return step

    def _decide(self, scaler: GradScaler | None) -> None:
        """Decide that an optimizer steps this model. Held data was skipped by its scaler, or is part of its step."""
        scales = scales_until_now(scaler, self._attempts) if scaler is not None else []
        self._ends, self._attempts = "optimizer", 0
        self.step += self._host.release_parts(as_steps=bool(scales), scales=scales)

    def _is_late(self, owner: Owner) -> bool:
        """Return whether it steps with the gradients of the last step, after another optimizer."""
        if self.reach.has(owner, self.alone) or not self.step:
            return False
        witnesses, joins = owner.witnesses, bool(self._group) and id(owner) not in self._group
        if self.reach.passed:  # a pass that its witnesses did not see
            is_compared = self.reach.comparison.was_at(witnesses.keys) and witnesses.were_reached
            return is_compared and self.last_owner not in (owner, None)
        if not self.reach.saw_passes:  # compiled as a whole, or with gradients that were set manually
            return joins
        # Between the steps of two optimizers, the second one's gradients may be clipped or divided.
        return not owner.steps or self.reach.many_threads or witnesses.have_nothing_new(or_edited=joins)

    def end_with_pass(self, owner: Owner) -> None:
        """End the step with the running backward pass, because the optimizer steps inside it."""
        owner.inside = True
        self.ends_with_pass = True

    def tick(self, skipped_by: GradScaler | None = None) -> None:
        """End the step."""
        self.passes = 0
        self.reach.end_step()
        self._host.end_step(skipped_by)
        self.step += 1
        self._host.begin_step()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _release(self, keys: Set[int]) -> None:
        """Keep no parameter alive of a module that is gone, given by id. A module may die in any thread."""
        self.track.drop()
        for owner in (*self.owners, self.alone, self.last_owner):
            if owner is not None:
                owner.witnesses.release(keys)

    def let_go(self) -> None:
        """Let go of the training's parameters, and of what a graph that still lives would keep alive through them."""
        self._parameters.when_gone = lambda _: None
        self.track.drop()
        self.reach.comparison.let_go()
        self.alone = self.last_owner = None
        self.owners.let_go()

    # -- backward passes --------------------------------------------------------------------------------------------

    def pass_begins(self) -> None:
        """Handle the start of a pass that accumulates gradients."""
        if not self.reach.pass_begins(self.alone):
            return
        if not self.stepping and not self.manual:
            self.begins_late = True
            self.notice_end()
            self.begins_late = False
        self.reach.compare(early=self.step < FIRST_STEPS or self._ends != "optimizer")

    def pass_ended(self) -> bool:
        """Handle the end of a pass, even if it raised. Return whether it reached a watched parameter, if known."""
        reached = self.reach.pass_ended(self.alone, self._ends == "optimizer")
        stepping = self.stepping
        if stepping:
            self._passed_inside.add(threading.get_ident())
        if self.ends_with_pass:
            self.ends_with_pass = False
            if self._ends != "optimizer":
                self._decide(None)
            self.tick()
        elif reached and not stepping and not self.manual:
            self.passes += 1
            if self._ends != "optimizer":
                self._count_by_hand()
        return reached

    # -- steps that no optimizer ends -------------------------------------------------------------------------------

    def notice_end(self) -> bool:
        """Notice a step that ended without an optimizer: a scaler skipped it, or the weights were changed manually.

        Called where the next step may begin: before a pass, a module's run, or a logged value.
        """
        if (not self.passes and self._ends != "hand") or not self.reach.is_sure:
            return False
        if self._ends == "optimizer":
            owners = [owner for owner in self.owners if owner.owns]
            skipped = max(owners, key=lambda owner: owner.scaler.attempts(owner.ref()), default=None)
            if skipped is None or not skipped.scaler.attempts(skipped.ref()):
                return False
            self.last_owner = skipped  # the step is its own, though it didn't take it
            self.tick(skipped.scaler.live())
            return True
        witnesses = self.owners.tensors()
        changed = self.reach.comparison.weights_changed(witnesses)
        if not (changed or self.reach.comparison.were_reset(witnesses)) or runs_step():
            if self.begins_late and self._ends == "hand" and not self.passes and self.reach.comparison.has_marks:
                self._by_hand += 1  # the passes are micro-batches: more of them make a step
            return False
        self.reach.comparison.forget_marks()
        if self._ends == "hand":
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
        """Return whether passes have ended and it is still unknown what ends steps."""
        return bool(self.passes) and self._ends == "unknown"

    @property
    def awaits_end(self) -> bool:
        """Return whether passes have ended whose step may end unseen: by an unknown cause, or because it is skipped."""
        is_open = bool(self.passes) and self.alone is None
        return is_open and (self.undecided or any(owner.scaler.found for owner in self.owners))

    def _count_by_hand(self) -> None:
        if self._ends == "hand":
            if self.passes >= self._by_hand:
                self._end_by_hand()
        elif self.passes >= PASSES_WITHOUT_STEP and not self._attempts:
            if self.owners.are_waiting():
                self._decide(None)
                return
            self._steps_by_hand(1)
            self._end_by_hand()

    def _steps_by_hand(self, passes: int) -> None:
        self._ends, self._by_hand = "hand", passes
        first = " The first steps have no weight gradients, because it wasn't known yet when these were complete."
        text = "No torch optimizer steps this model: steps are counted by backward passes."
        self._emit("no-optimizer", f"{text}{first if self._attempts else ''}")
        self.step += self._host.release_parts(as_steps=True)
        self._attempts = 0

    def _end_by_hand(self) -> None:
        self._host.read_parameters()
        self.tick()
