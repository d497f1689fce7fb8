"""Backward passes of the training: what each of them means for the running step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.engine import ObservedEngine
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.boundary import EndsSteps, ends_steps
from hookcore.recorder.entry import entry
from hookcore.recorder.foundloss import FoundLoss
from hookcore.recorder.keeping import Keeping
from hookcore.recorder.parts import Parts
from hookcore.recorder.passes import PassProbes
from hookcore.recorder.placement import Placement
from hookcore.recorder.scales import LossScale
from hookcore.recorder.sentinel import Sentinel
from hookcore.records.vocabulary import TIME_BACKWARD


@dataclass(slots=True, eq=False)
class BackwardPasses(EndsSteps):
    """Tells the clock of the passes, which may end a step."""

    _loss: FoundLoss
    _parts: Parts
    _scale: LossScale
    _probes: PassProbes
    _keeping: Keeping
    _placement: Placement
    _sentinel: Sentinel

    @entry("begin of a backward pass")
    def backward_begins(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> None:
        """Note that a backward pass of this process starts."""
        self._times.enter(TIME_BACKWARD)
        self._current.begin_pass(accumulates)
        if (holding := self._placement.holding) is not None:
            holding.begin_pass()
        if accumulates:
            self.clock.pass_begins()  # which may notice the end of the last step
            if self._loss.reads:
                self._loss.begin_pass(tensors, weights, self.clock.reach.fate)
            if self._probes.due:
                self._probes.begin()

    @ends_steps
    @entry("end of a backward pass")
    def backward_ended(self, accumulates: bool, raised: bool) -> None:
        """Note the end of the pass, even if it raised."""
        self._times.leave(TIME_BACKWARD)
        reached = self._current.end_pass(accumulates)
        if accumulates and not raised:
            self._sentinel.look(self.clock, self._loss.running, lambda: reached or self._counts(self.clock.reaches))
        if reached or (raised and accumulates):  # a pass that failed is given up, wherever it got to
            self._dispatcher.reset_calls()
        if reached:
            self._keeping.look("at the end of a backward pass", self.clock, is_whole=False)
        if (holding := self._placement.holding) is not None:
            holding.end_pass()
        if accumulates:
            self._end_accumulating(reached)
            self._keeping.settle("at the end of a backward pass")

    def _end_accumulating(self, reached: bool) -> None:
        if self._probes.due:
            self._probes.end()
        if self._parts.is_cut or self._parts.has_new_held:
            self._parts.saw_pass()
        if reached or self.clock.ends_with_pass:  # now, because an optimizer that steps inside the pass ends the step
            self._loss.end_pass(counts=True)
        if self.clock.stepping:
            self._loss.forget()  # a closure is called as often as the optimizer likes
        reaches = self.clock.pass_ended()
        if not reached:
            self._end_unwatched(reaches)
        pending = self._current.captured and self.clock.awaits_end
        self._current.pending = pending
        if pending:
            self._scale.note_pass(self.clock.owners.scalers())

    def _end_unwatched(self, reaches: bool) -> None:
        """End a pass without watched tensors: none of an uncaptured step is, and some passes reach parameters only."""
        counts = self._counts(reaches)
        if self._current.captured and not counts:
            self.clock.note_stray()
        self._loss.end_pass(counts)

    def _counts(self, reaches: bool) -> bool:
        """Return whether a pass without watched tensors is one of this training, if it reaches a witness or may."""
        return reaches and (self.clock.compares_passes or not self._current.captured)

    def inner_begins(self, accumulates: bool) -> bool:
        """Note that a pass starts inside a pass."""
        return self._current.begin_inner(accumulates)

    def inner_ended(self) -> None:
        """Note that a pass inside a pass ended whose gradients don't count."""
        self._current.end_inner()

    def saw_pending_call(self) -> None:
        """Check whether a step has ended: a module is about to run, after a pass that may have been the last one."""
        with self._lock, DisableTorchFunction():
            if self._current.running or self.clock.stepping:
                return
            self._current.pending = self._times.prompt = False
            if not self.clock.notice_end() and self.clock.undecided:
                self._parts.cut(self.clock.step)


guard_functions(ObservedEngine.run_backward)
