"""A sample of the machine, and the mean of several."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers by the name of their scalar, and facts in words, which readers of the numbers need."""

    numbers: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


class Mean:
    """The mean of each number in the samples so far; a number that some samples lack is the mean of the others."""

    __slots__ = ("_counts", "_facts", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._facts: dict[str, str] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        for name, number in sample.numbers.items():
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1
        self._facts |= sample.facts

    def take(self) -> Sample:
        """Return the mean, and begin again."""
        taken = Sample({name: total / self._counts[name] for name, total in self._sums.items()}, self._facts)
        self._sums, self._counts, self._facts = {}, {}, {}
        return taken
