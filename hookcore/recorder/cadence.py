"""Which steps are captured: every k-th, with k chosen so that the measured cost stays under the user's budget."""

from __future__ import annotations

import math
from collections import deque
from statistics import quantiles
from typing import Final

WINDOW: Final = 15  # steps of each sort that the estimate looks at
WARM_UP: Final = 3  # first steps, whose time is spent on compiling and allocating
TRIAL: Final = 2 * WINDOW  # steps after the warm-up that alternate, to learn the cost
AIM: Final = 0.6  # share of the budget that is aimed at: an estimate is noisy
PROBE_EVERY: Final = 32  # when every step is captured, one in so many is left out to go on measuring
ESTIMATE_EVERY: Final = 8  # steps from one estimate to the next
MAX_STRIDE: Final = 1000


class Cadence:
    """Compares the time of captured and of uncaptured steps in the run itself.

    By the lower quartiles of recent ones: what else a machine does makes steps longer, never shorter.
    """

    def __init__(self, every: int, budget: float | None) -> None:
        self.every = every
        self.budget = budget
        self.stride = every
        self.cost = float("nan")  # share of a step's time that capturing it adds
        self.background_s = 0.0  # processor time that the recorder's thread takes for a frame
        self.skipped = 0
        self._seen = 0
        self._captured: deque[float] = deque(maxlen=WINDOW)
        self._plain: deque[float] = deque(maxlen=WINDOW)

    @property
    def effective_cost(self) -> float:
        """The share of the run's time that the hooks take, with the steps left out."""
        return self.cost / self.stride

    def change(self, every: int, budget: float | None) -> None:
        """The user wants it otherwise. What was measured still holds."""
        self.every, self.budget = every, budget
        self.stride = every
        if budget is not None:
            self._estimate(budget)
            if not self._plain or not self._captured:
                self._seen = min(self._seen, WARM_UP)  # steps of one sort alone tell no cost: alternate again

    def took(self, background_s: float) -> None:
        """Told by the recorder's thread what a frame took."""
        self.background_s += 0.1 * (background_s - self.background_s)

    def next_is_captured(self, captured: bool, elapsed_s: float) -> bool:
        """Told of the step that just ended; answers whether the next one is captured."""
        self._seen += 1
        if self._seen > WARM_UP and elapsed_s == elapsed_s:
            (self._captured if captured else self._plain).append(elapsed_s)
        wanted = self._decide()
        self.skipped += not wanted
        return wanted

    def _decide(self) -> bool:
        if self.budget is None:
            return self._seen % self.every == 0
        if self._seen < WARM_UP + TRIAL:
            return self._seen % (2 * self.every) == 0 if self.every > 1 else self._seen % 2 == 0
        if self._seen % ESTIMATE_EVERY == 0 or self.cost != self.cost:
            self._estimate(self.budget)
        if self.stride == 1:
            return self._seen % PROBE_EVERY != 0
        return self._seen % self.stride == 0

    def _estimate(self, budget: float) -> None:
        if self._captured and self._plain:
            plain = _lower_quartile(self._plain)
            extra = max(0.0, _lower_quartile(self._captured) - plain) + self.background_s
            self.cost = extra / plain if plain > 0 else 0.0
            stride = min(MAX_STRIDE, math.ceil(self.cost / (AIM * budget)))
            self.stride = max(self.every, stride, 1)


def _lower_quartile(times: deque[float]) -> float:
    return quantiles(times, n=4)[0] if len(times) > 1 else times[0]
