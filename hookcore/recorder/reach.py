"""The backward passes since the last step ended: whether they have brought an optimizer new gradients."""

from __future__ import annotations

import threading

from hookcore.recorder.comparison import Comparison
from hookcore.recorder.owners import Owner, Owners
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.witnesses import Fate


class Reach:
    """Compares the witnesses before and after each pass, unless a single optimizer is known to be alone.

    Gradients are read only while a single thread has ever run a pass. Torch sets and frees `.grad` without the
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
