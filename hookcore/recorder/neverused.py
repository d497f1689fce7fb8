"""Which parameters of the optimizers never got a gradient, in captured steps or not, and the modules that they are of.

An optimizer leaves a trace on each parameter that it steps: the version of the tensor grows, or there is a state for
it. So two looks, many steps apart, know about all steps in between, and a rarely routed expert isn't called unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor
from torch.optim import Optimizer

from hookcore.recorder.parameters import Parameter
from hookcore.recorder.plans import Plan
from hookcore.recorder.roots import joined
from hookcore.records import ROOT, Value

MIN_IDLE: Final = 64  # steps without a trace
MIN_READ: Final = 4  # captured steps in which no parameter of a module had a gradient
SHOWN: Final = 20  # names of each sort in a message


class Traces:
    """What the optimizers have left on their parameters, as far as it was looked at."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # by id of a tensor: its version, and since which step it has it

    def look(self, optimizer: Optimizer, owned: Sequence[tuple[Parameter, Tensor]], step: int) -> list[Parameter]:
        """Return the parameters that have had no trace for long; none if the optimizer leaves none on any of them."""
        idle, leaves_traces = [], False
        for each, tensor in owned:
            version, since = self._known.get(id(tensor), (None, step))
            now, state = _version_of(tensor), optimizer.state.get(tensor)
            if now is None or now != version or state or tensor.grad is not None:
                leaves_traces |= version is not None and (now != version or bool(state))
                self._known[id(tensor)] = now or 0, step
            elif step - since >= MIN_IDLE:
                idle.append(each)
        return idle if leaves_traces else []

    def keep(self, tensors: Collection[int]) -> None:
        """Forget all but these tensors, given by id."""
        for key in self._known.keys() - set(tensors):
            del self._known[key]


def _version_of(tensor: Tensor) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # an inference tensor has none
        return None


@dataclass(frozen=True, slots=True)
class NeverUsed:
    """What was never used, the outermost modules by path: what is inside them was not used either."""

    parameters: tuple[Parameter, ...]
    never_ran: tuple[str, ...]
    no_loss: tuple[str, ...]  # they ran, but got no gradient
    single: tuple[str, ...]  # parameters of modules that get gradients
    alike: int  # the number of these modules that are in a list with others that are trained, such as experts

    @classmethod
    def of(cls, idle: Sequence[Parameter], everyone: Sequence[Parameter]) -> NeverUsed:
        """Sort idle parameters by what the captured steps showed of their modules."""
        holders, rests = holders_of(everyone), {id(each) for each in idle}
        trained = {each.plan.path for each in everyone if each.plan.history.got_gradients and id(each) not in rests}
        unused = {each.plan.path for each in idle if _is_unused(each.plan)} - holders
        # A module of which nothing is trained any more has been used, as a rarely routed expert.
        lone = [
            each for each in idle if each.plan.path in trained or (each.plan.path in holders and _is_unused(each.plan))
        ]
        every, idle_of, ran = Counter[str](), Counter[str](), set[str]()
        for path, plan in {each.plan.path: each.plan for each in everyone}.items():
            above = list(_upward(plan))
            every.update(above)
            idle_of.update(above if path in unused else ())
            ran.update(above if plan.history.seen else ())
        outermost = dict.fromkeys(
            [each for each in _upward(plan) if idle_of[each] == every[each]][-1]
            for plan in (each.plan for each in idle if each.plan.path in unused)
        )
        chosen = {id(each) for each in lone}
        parameters = tuple(each for each in idle if each.plan.path in unused or id(each) in chosen)
        single = tuple(f"{each.plan.path or ROOT} {each.name}" for each in lone)
        never_ran, no_loss = (
            tuple(each for each in outermost if (each in ran) == has_run) for has_run in (False, True)
        )
        lists = {_list_of(each) for each in holders | trained} - {""}
        return cls(parameters, never_ran, no_loss, single, sum(_list_of(each) in lists for each in outermost))

    @property
    def about(self) -> dict[str, Value]:
        """Return the facts that decide how serious it is."""
        numbers = {"never_ran": len(self.never_ran), "no_loss": len(self.no_loss), "single": len(self.single)}
        return {**numbers, "alike": self.alike}

    @property
    def sentence(self) -> str:
        """Name all of it, as far as there is room."""
        parts = (
            ("these modules never ran, so they don't learn", self.never_ran),
            ("no loss depends on the outputs of these modules, so they don't learn", self.no_loss),
            ("these parameters never get a gradient, although others of their modules do", self.single),
        )
        return "; ".join(f"{what}: {_listed(names)}" for what, names in parts if names)


def holders_of(everyone: Sequence[Parameter]) -> set[str]:
    """Return the paths of the modules that contain one whose parameters get gradients."""
    trained = [each.plan for each in everyone if each.plan.history.got_gradients]
    return {path for plan in trained for path in (*list(_upward(plan))[1:], plan.root.name)}


def _is_unused(plan: Plan) -> bool:
    return not plan.history.got_gradients and plan.history.without_gradient >= MIN_READ


def _upward(plan: Plan) -> Iterator[str]:
    """Yield the path of a module and of those that contain it, except the root."""
    root = plan.root.name
    names = (plan.path.removeprefix(f"{root}/") if root else plan.path).split(".")
    for many in range(len(names), 0, -1):
        yield joined(root, ".".join(names[:many]))


def _list_of(path: str) -> str:
    """Return the list that a module is an element of, by its path, or ""."""
    above, _, name = path.rpartition(".")
    return above if name.isdecimal() else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(name or ROOT for name in names[:SHOWN]) + (f", and {more:,} more" if more > 0 else "")
