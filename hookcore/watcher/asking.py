"""What a script asks of a watch: tensors, probes, saved steps, and pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from hookcore.config import Pattern
from hookcore.errors import ArgumentError, ClosedError
from hookcore.recorder.measured.probes import MAX_PROBES, probe_of
from hookcore.records import Kind, Phase, Tap
from hookcore.store.checks import find_tap
from hookcore.watcher.feeding import FedRun


class AskedRun(FedRun):
    """The side of a watch that a script steers. It raises if the watch is closed, or for a wrong request."""

    def request_snapshot(
        self,
        module: str | None = None,
        kind: Kind = "output",
        index: str = "",
        call: int = 0,
        phase: Phase = "train",
        *,
        tap: str | None = None,
    ) -> None:
        """Capture a raw tensor at its next call, and store it with the run's frames.

        Name a tap that was captured before by its label, such as `tap="0 output_grad"`, or any by its module and kind.
        """
        self._check_open()
        if (tap is None) == (module is None):
            raise ArgumentError('give either a module, or the label of a tap, such as tap="0 output"')
        requests, named = self._recorder.requests, Tap(str(module), kind, index, call, phase)
        if tap is not None:
            _, named = find_tap(enumerate(requests.taps), tap)
        requests.take_snapshot(named)

    def probe(
        self,
        name: str,
        function: Callable[[Tensor], Any] | type,
        *,
        include: Pattern | Iterable[Pattern] | None = None,
        kinds: Kind | Iterable[Kind] = "output",
        every: int = 100,
    ) -> None:
        """Add a probe: `function(tensor)` returns a number, or a 1-D tensor of numbers.

        It is called for tensors of these kinds ("output", "output_grad", "param", "param_grad") of the modules that
        `include` matches, in the first captured step of every `every` steps. Its results are taps of the kind "probe".
        If `function` is a class, each tensor gets its own object, which remembers a few steps (docs/probes.md).
        """
        self._check_open()
        probe = probe_of(name, function, include, kinds, every)
        self._recorder.models.check_patterns(probe.include)
        if not self._recorder.requests.add_probe(probe):
            raise ArgumentError(f"a watcher has at most {MAX_PROBES} probes: remove one")

    def capsule(self) -> None:
        """Save the next step to a capsule, for `hookcore replay`. An event says where it is, or why not."""
        self._check_open()
        self._recorder.keeping.ask()

    def pause(self) -> None:
        """Stop capturing until `resume()`. Steps are still counted."""
        self._check_open()
        self._recorder.requests.pause()

    def resume(self) -> None:
        """Resume capturing."""
        self._check_open()
        self._recorder.requests.resume()

    def _check_open(self) -> None:
        if self._recorder.closed:
            raise ClosedError("this watcher was closed; call hookcore.watch(model) for a new one")
