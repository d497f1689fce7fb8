"""One probe: a function of the user or of hookcore, and when and for which tensors it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from torch import Tensor

from hookcore.config import Pattern
from hookcore.config.readers import read_include
from hookcore.errors import ArgumentError
from hookcore.recorder.passes import Passes
from hookcore.recorder.plans import Plan
from hookcore.records import Kind, Tap

MAX_NAME: Final = 100
MAX_COMPUTES: Final = 200  # letters of the name of a function
MAX_STATES: Final = 1024  # objects of a class
MAX_FAULTS: Final = 3  # then it is switched off
PROBE_KINDS: Final[tuple[Kind, ...]] = ("output", "output_grad", "param", "param_grad")

Function = Callable[[Tensor], Any]


@dataclass(slots=True, eq=False)
class Probe:
    """One function, and which tensors it gets."""

    name: str
    function: Function
    include: tuple[Pattern, ...]
    kinds: frozenset[Kind]
    every: int
    due_at: int = 0  # the first captured step from this one on
    begun_at: int = -1  # the newest step in which it was due
    until: int = 0  # it runs in each step before this one
    faults: int = 0
    states: dict[Tap, _State] = field(default_factory=dict)  # of a class: its objects, in these steps
    paths: frozenset[str] = frozenset()  # of the modules that it looks at in this step
    passes: Passes | None = None  # set if it looks at backward passes

    @property
    def computes(self) -> str:
        """The qualified name of its function, by which rules recognize what its results mean."""
        function: Any = self.function
        while isinstance(function, partial):
            function = function.func
        named = function if hasattr(function, "__qualname__") else type(function)
        return f"{getattr(named, '__module__', '')}.{named.__qualname__}"[:MAX_COMPUTES]

    @property
    def is_off(self) -> bool:
        """Whether it failed too often."""
        return self.faults >= MAX_FAULTS

    def count_fault(self, error: Exception) -> str:
        """Count an exception of the function. Return what to say of it: of the first one, and of the last."""
        self.faults += 1
        if self.faults > 1 and not self.is_off:
            return ""
        off = f"; after {MAX_FAULTS} errors, it is switched off" if self.is_off else ""
        return f"the probe {self.name!r} failed: {type(error).__name__}: {error}"[:600] + off

    def begin_step(self, step: int, captured: bool, block: int) -> bool:
        """Return whether it looks at a step. `block`: the steps after which a parameter has its next gradient."""
        goes_on = step in (self.begun_at, self.begun_at + 1) and step < self.until
        if self.is_off or not captured or not (goes_on or self.due_at <= step or self.begun_at == step):
            self.states = {}
            if step != self.begun_at:
                self.until = 0
            return False
        if not goes_on:
            self.states = {}
            in_a_row = getattr(self.function, "in_a_row", 1)
            self.due_at, self.until = step + self.every, step + (in_a_row * block if in_a_row > 1 else 1)
            if self.passes is not None:
                self.passes.begin_step()
        self.begun_at = step
        return True

    def wants_next(self, step: int) -> bool:
        """Return whether a step has to be captured because the one before was, and both belong together."""
        return step == self.begun_at + 1 and step < self.until and not self.is_off

    def call_for(self, tap: Tap, plan: Plan, step: int) -> Function | None:
        """Return the function, or the object of a class for this tap. None if it has had its tensor in this step."""
        if not isinstance(self.function, type):
            return self.function
        state = self.states.get(tap)
        if state is None or state.plan is not plan:
            if len(self.states) >= MAX_STATES:
                raise OverflowError(f"it matches more than {MAX_STATES:,} tensors: use a narrower include")
            state = self.states[tap] = _State(plan, self.function())
        if state.step == step:
            return None
        state.step = step
        return state.call


@dataclass(slots=True, eq=False)
class _State:
    """An object of a probe that is a class."""

    plan: Plan
    call: Function
    step: int = -1  # the step in which it got its last tensor


def probe_of(name: str, function: Function, include: Any, kinds: Any, every: int) -> Probe:
    """Return a probe with these arguments of a user. Raises ArgumentError for a wrong one."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ArgumentError(f"name={name!r} is invalid: use a string of 1 to {MAX_NAME} characters")
    if not callable(function):
        raise ArgumentError(f"function={function!r} is invalid: use a function that takes a tensor")
    chosen = frozenset([kinds] if isinstance(kinds, str) else kinds)
    if not chosen or not chosen <= set(PROBE_KINDS):
        raise ArgumentError(f"kinds={kinds!r} is invalid: use one or more of {', '.join(map(repr, PROBE_KINDS))}")
    if type(every) is not int or every < 1:
        raise ArgumentError(f"every={every!r} is invalid: use an integer of 1 or more")
    try:
        patterns = read_include(include)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"include={include!r} is invalid: use a pattern, a list of patterns, or None. {error}"
        ) from None
    if isinstance(function, type) and hasattr(function, "end_pass"):
        return Probe(name, function, patterns, frozenset(), every, passes=Passes(function))
    return Probe(name, function, patterns, chosen, every)
