"""Which steps are captured, and what capturing costs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, Final

from hookcore.records import vocabulary
from hookcore.records.vocabulary import OWN

# A step is selected by its number alone, so that the runs of a sweep, ranks, and repeated runs share their captured
# steps. The stride is `every` times a power of two, so multiples of a longer stride are multiples of a shorter one. If
# several optimizers take turns, steps are captured in blocks in which each of them steps. The measured cost determines
# the stride.
#
# As long as the *allowance* lasts, the stride is the requested one, whatever the budget says. The allowance only makes
# a stride shorter, so the steps of a run that has used it up are still among those of one that hasn't.
#
# A step's histograms cost about as much as all its other numbers, and fewer of them are needed. So the stride is the
# shortest one that is within the budget with histograms in one of SPARSEST captured steps, and then there are as many
# histograms as are within it with that stride.

WINDOW: Final = 15  # steps of each sort in the estimate
LEAST_PAIRS: Final = 5  # captured steps of a sort, and as many others, before they are compared
TIMED_STEPS: Final = 3  # timed steps before a cost is reported
WARM_UP: Final = 3  # first steps, which are slow because of compiling and allocating
TRIAL: Final = 2 * WINDOW  # steps after the warm-up that alternate, to learn the cost
AIM: Final = 0.6  # targeted share of the budget, because an estimate is noisy
LEAST: Final = 0.3  # share of the budget for capturing, even if following the steps takes all of it
MOST_FOLLOWED: Final = 0.9  # of the time of a step that isn't captured; more is an error of measurement
PROBE_EVERY: Final = 32  # if every step is captured, one block in this many is skipped to keep measuring
TIME_EVERY: Final = 64  # if every step is captured without a limit, one in this many is timed;
TIME_FIRST_EVERY: Final = 4  # until the window is full, more are
ESTIMATE_EVERY: Final = 8  # steps between estimates
MAX_STRIDE: Final = 1024
SPARSEST: Final = 8  # captured steps from one with histograms to the next, at most; a power of two
AROUND: Final = 8  # captured steps that have histograms from something unusual on
RARE_EVERY: Final = 50  # captured steps from one to the next in which optimizers are measured, unless it is set
RARE_FIRST: Final = 16
FINE: Final = 3  # leading bits of the number of an automatic snapshot; the others are zero: four in each doubling
MAX_REPORTED: Final = 200  # steps of which an event says why they were captured
MINUTE_S: Final = 60.0
MAX_FINDERS: Final = 256  # scalars that are checked for jumps
SKIPPED, LEAN, WHOLE = range(3)  # sorts of steps: not captured, captured without histograms, and with them
MAX_BLOCK: Final = 32  # steps; optimizers that step more rarely are not waited for

_UNKNOWN: Final = float("nan")
Ended = tuple[int, float]  # of a step that ended: its sort, and the seconds that it took


class Cadence:
    """Compares the time of captured and of uncaptured steps in the run itself.

    It uses the lower quartiles of recent steps, because other work on the machine makes steps longer, never shorter. If
    every step is captured, there is nothing to compare with; then hookcore's own code is timed in a few of them.
    """

    def __init__(
        self,
        every: int,
        budget: float | None,
        allowance: float = 0.0,
        rare_every: int = RARE_EVERY,
        sketches: int | None = 1,
    ) -> None:
        self.every = every
        self.rare_every = rare_every
        self._sketches = sketches  # captured steps from one with histograms to the next; None: as the budget allows
        self.thinning = sketches or 1  # what it is now
        self.sketched = True  # whether the running captured step has histograms, or the last one had
        self._around = 0  # captured steps to come that have them for what was unusual before
        self.budget = budget
        self._allowance = allowance  # seconds of capturing in a minute, which is also what can be saved up
        self._allowed_s = allowance  # what is left of it
        self._is_free = budget is not None and allowance > 0  # whether no budget counts now
        self.stride = every
        self._measuring = True
        self._seen = 0
        if budget is not None and not self._is_free:
            self._alternate()
        self.block = 1  # steps that are captured together
        # Shares of the time of a step without hookcore: what capturing adds to a step on average, what histograms do in
        # a step that has them, and what each step takes anyway.
        self.cost = float("nan")
        self._histograms = self.following = 0.0
        self._snapshots_s = 0.0  # of the training's thread for automatic snapshots, per captured step
        self.background_s = self._light_s = 0.0  # processor time of hookcore's threads per captured and other frame
        self.uncaptured = 0  # steps that were skipped
        self.ended: list[Ended] = []  # steps that ended since the cadence last looked
        self.alarmed = ""  # why to capture the next step, whatever its number
        self._reported = 0  # steps that were captured for such a reason
        self.reason = ""  # why the running step is one that `chooses` doesn't choose
        self._plain: deque[float] = deque(maxlen=WINDOW)
        # Of steps captured without histograms, and with them: these are rare if only some have them by the settings.
        self._lean, self._whole = Pairs(LEAST_PAIRS), Pairs(LEAST_PAIRS if sketches in (None, 1) else 1)
        self._finders: dict[str, JumpFinder] = {}  # by name of a scalar
        # Hookcore's time in steps that weren't captured: those that went the short way, in means, and the others.
        self._short: deque[float] = deque(maxlen=WINDOW)
        self._long: deque[float] = deque(maxlen=WINDOW)
        self._went = 0, 0  # how many went each way
        self._spent: deque[float] = deque(maxlen=WINDOW)  # hookcore's share of timed steps
        self._rest: deque[float] = deque(maxlen=WINDOW)  # the user's share

    @property
    def effective_cost(self) -> float:
        """The share that hookcore adds to the run's time at the current stride, skipped steps included."""
        probes = self.stride == 1 and self.budget is not None and not self._is_free
        share = 1 - 1 / PROBE_EVERY if probes else 1 / self.stride
        return self.cost * share + self.following

    def change(self, every: int, budget: float | None) -> None:
        """Apply new settings. Earlier measurements stay valid."""
        self.catch_up()
        self.every, self.budget = every, budget
        self.stride, self.thinning = every, self._sketches or 1
        self._is_free = budget is not None and self._allowed_s > 0
        if budget is not None and not self._is_free:
            self._learn(budget)

    def _learn(self, budget: float) -> None:
        """Choose the stride by what is known of the cost."""
        self._estimate(budget)
        if not self._knows_all:
            self._alternate()

    def _alternate(self) -> None:
        """Take steps of each sort in turns, because those of one sort alone don't show the cost."""
        self._seen, self._measuring = min(self._seen, WARM_UP), True
        self.stride, self.thinning = 2 * self.every, self._sketches or 2

    @property
    def _knows_all(self) -> bool:
        """Whether there were enough steps of each sort."""
        known = [self._whole.are_enough, self._lean.are_enough]
        return any(known) if self._sketches else all(known)

    def take_turns(self, gap: int) -> None:
        """Select steps in blocks in which each optimizer steps; the rarest one steps every `gap` steps."""
        self.block = 1 if gap == 1 else 1 << (min(MAX_BLOCK, gap) - 1).bit_length()
        self._lean.take_turns(self.block)
        self._whole.take_turns(self.block)

    def as_scalars(self) -> dict[str, float]:
        """Return the scalars to log with each frame."""
        if self.ended:
            self.catch_up()
        if self.cost != self.cost:
            return {}
        return {
            vocabulary.COST: self.cost,
            vocabulary.EFFECTIVE_COST: self.effective_cost,
            vocabulary.FOLLOWING_COST: self.following,
            vocabulary.STRIDE: float(self.stride),
            vocabulary.HISTOGRAM_STRIDE: float(self.stride * self.thinning),
            vocabulary.UNCAPTURED_STEPS: float(self.uncaptured),
        }

    def as_settings(self) -> dict[str, Any]:
        """Return the figures to show with the settings, in types that JSON has."""
        self.catch_up()
        known = self.cost == self.cost
        return {
            "stride": self.stride,
            "histogram_stride": self.stride * self.thinning,
            "cost": self.cost if known else None,
            "effective_cost": self.effective_cost if known else None,
            "following_cost": self.following if known else None,
            "uncaptured_steps": self.uncaptured,
        }

    def took(self, background_s: float, captured: int, others: int) -> None:
        """Record how long hookcore's own threads took for frames, of which so many are of captured steps."""
        if captured:
            rest = max(0.0, background_s - others * self._light_s)
            self.background_s += 0.1 * (rest / captured - self.background_s)
        elif others:
            self._light_s += 0.1 * (background_s / others - self._light_s)

    def followed(self, spent_s: float, short: int = 0) -> None:
        """Record how long hookcore took the training's thread in a step that wasn't captured; 0 if that is unknown.

        `short`: it is the time of so many steps, which went the short way.
        """
        if spent_s <= 0:
            return
        (self._short if short else self._long).append(spent_s / (short or 1))
        self._went = self._went[0] + short, self._went[1] + (not short)

    def alarm(self, why: str) -> None:
        """Capture the next step, whatever its number: the loss jumped, or something became non-finite."""
        self.alarmed = self.alarmed or why

    def look_for_jumps(self, *logged: dict[str, Any]) -> None:
        """Capture the next step if a logged loss jumps, or a number becomes non-finite or was so before."""
        for name, value in chain.from_iterable(map(dict.items, logged)):
            if not isinstance(value, float) or name.startswith(OWN):
                continue
            finder = self._finders.get(name)
            if finder is None:
                is_looked_at = "loss" in name.lower() or not math.isfinite(value)
                if not is_looked_at or len(self._finders) >= MAX_FINDERS:
                    continue
                finder = self._finders[name] = JumpFinder()
            if finder.jumped(value):
                self.alarm(f"{name} jumped to {value:.6g}" if math.isfinite(value) else f"{name} was {value}")

    def step_ended(self, captured: bool, elapsed_s: float, spent_s: float = float("nan")) -> None:
        """Record the step that just ended. `spent_s` is the time of hookcore's own code in it, if it was timed."""
        if self.ended:
            self.catch_up()
        self._seen += 1
        self.uncaptured += not captured
        if self._seen > WARM_UP and elapsed_s == elapsed_s:
            self._note_time(self.sort_of(captured), elapsed_s)
            if spent_s == spent_s:
                self._note_spent(elapsed_s, spent_s)
        if self.budget is not None and self._allowance:
            # Of the training's thread alone: else a short training would have too few captured steps to be judged.
            price_s = self._price(self.sort_of(captured), elapsed_s, spent_s) if captured else 0.0
            self._spend(self.budget, elapsed_s, price_s)
        self._conclude(self._seen % ESTIMATE_EVERY == 0, spent_s)

    def timed(self, elapsed_s: float, spent_s: float) -> None:
        """Record how long hookcore took in one of several captured steps that are recorded together."""
        self._note_spent(elapsed_s, spent_s)
        self._conclude(False, spent_s)

    def _note_time(self, sort: int, elapsed_s: float) -> None:
        if sort == SKIPPED:
            self._plain.append(elapsed_s)
            self._lean.before.append(elapsed_s)
            self._whole.before.append(elapsed_s)
        else:
            self._of(sort).add(elapsed_s)

    def _of(self, sort: int) -> Pairs:
        return self._lean if sort == LEAN else self._whole

    def _note_spent(self, elapsed_s: float, spent_s: float) -> None:
        self._spent.append(spent_s)
        self._rest.append(max(0.0, elapsed_s - spent_s))

    def sort_of(self, captured: bool) -> int:
        """Return which sort of step one is: skipped, captured without histograms, or captured with them."""
        return (WHOLE if self.sketched else LEAN) if captured else SKIPPED

    def catch_up(self) -> None:
        """Record the steps that ended in the meantime, which `ended` has in their order.

        Until this is called, none of them changes what is captured.
        """
        ended, self.ended = self.ended, []
        if not ended:
            return
        seen, self._seen = self._seen, self._seen + len(ended)
        self.uncaptured += sum(sort == SKIPPED for sort, _ in ended)
        for sort, elapsed_s in ended[max(0, WARM_UP - seen) :]:
            self._note_time(sort, elapsed_s)
        if self.budget is not None and self._allowance:
            prices = [0.0, self._price(LEAN), self._price(WHOLE)]
            for sort, elapsed_s in ended:
                self._spend(self.budget, elapsed_s, prices[sort] if prices[sort] < math.inf else elapsed_s)
        self._conclude(seen // ESTIMATE_EVERY != self._seen // ESTIMATE_EVERY)

    def _conclude(self, is_due: bool, spent_s: float = float("nan")) -> None:
        """Estimate the cost, if an estimate is due."""
        if self.budget is None or self._is_free:
            if is_due and (self._whole.are_enough or self._lean.are_enough):
                self._compare()
            elif spent_s == spent_s and len(self._spent) >= TIMED_STEPS:
                self._measure(_lower_quartile(self._spent), _lower_quartile(self._rest))
            return
        if self._measuring and self._seen < WARM_UP + TRIAL:
            return
        if self._measuring or is_due or self.cost != self.cost:
            self._measuring = not self._knows_all
            self._estimate(self.budget)

    def _price(self, sort: int, elapsed_s: float = math.inf, spent_s: float = _UNKNOWN) -> float:
        """Return the seconds that capturing a step of a sort took. If they can't be told, it is the whole step."""
        if spent_s == spent_s:
            return spent_s
        if self._of(sort).are_enough:
            return self._of(sort).excess * _lower_quartile(self._plain)
        if self._spent:
            return _lower_quartile(self._spent)
        return elapsed_s if elapsed_s == elapsed_s else 0.0

    def _spend(self, budget: float, elapsed_s: float, price_s: float) -> None:
        """Let the allowance grow with time and shrink with capturing, and follow it."""
        grown = self._allowance / MINUTE_S * (elapsed_s if elapsed_s == elapsed_s else 0.0)
        self._allowed_s = max(0.0, min(self._allowance, self._allowed_s + grown) - price_s)
        if self._is_free and not self._allowed_s:
            self._is_free = False
            self._learn(budget)
        elif not self._is_free and self._allowed_s == self._allowance:  # as after a long evaluation
            self._is_free, self.stride, self.thinning = True, self.every, self._sketches or 1

    def wants(self, step: int) -> bool:
        """Return whether this step is captured. Called once for each step, when it begins."""
        why, self.alarmed = self.alarmed, ""
        chosen, self.reason = self.chooses(step), ""
        if why:
            self._around = AROUND
        if why and not chosen:
            self._reported += 1
            rest = "" if self._reported < MAX_REPORTED else "; later ones of this run aren't reported"
            self.reason = f"{why}{rest}" if self._reported <= MAX_REPORTED else ""
        return chosen or bool(why)

    def chooses(self, step: int) -> bool:
        """Return whether the number of a step is a captured one, without any special reason."""
        unit = step // self.block
        if self.stride == 1:
            return self.budget is None or self._is_free or unit % PROBE_EVERY != PROBE_EVERY - 1
        return unit % self.stride == 0

    def begin_captured(self, step: int) -> None:
        """Decide whether a captured step has histograms: by its number, or because something is unusual."""
        by_number = step // self.block % (self.stride * self.thinning) == 0
        self.sketched = by_number or self._around > 0 or not self.chooses(step)
        self._around = max(0, self._around - 1)

    @property
    def _is_limited(self) -> bool:
        return self.budget is not None and not self._is_free

    @property
    def _is_learning(self) -> bool:
        return self._is_limited and (self._measuring or self.cost != self.cost)

    def next_chosen(self, step: int) -> int:
        """Return the first step after this one that may be chosen by its number, as far as is known now."""
        if self._is_learning or self.stride == 1 or self.chooses(step + 1):
            return step + 1
        together = self.stride * self.block
        return (step // together + 1) * together

    def next_unlike(self, step: int, snapshot_every: int | None) -> int:
        """Return the first step after this one that may not be what its number says, or of which more is known.

        Until then, steps are captured by the stride, and those that are captured are known to be alike.
        `snapshot_every`: captured steps from one that may have automatic snapshots to the next.
        """
        unit, together = step // self.block, self.stride * self.block
        is_probed = self.stride == 1 and self._is_limited
        if self._is_learning or self._around or self._seen < WARM_UP or (is_probed and not self.chooses(step)):
            return step + 1
        place, cycles = step // together, (self.rare_every, snapshot_every or self.rare_every)
        ends = [(place + 1 + (min(RARE_FIRST, each - 1) - place - 1) % each) * together for each in cycles]
        if is_probed:
            ends.append((unit // PROBE_EVERY * PROBE_EVERY + PROBE_EVERY - 1) * self.block)
        if self._is_free and (price_s := self._price(self.sort_of(captured=True))) > 0:
            ends.append(step + 1 + int(self._allowed_s / (2 * price_s)))  # of the allowance: half of what is left
        return min(ends)

    def is_rare(self, step: int) -> bool:
        """Return whether a step is one of the few captured ones in which more is measured, by its number alone."""
        place = step // self.block // self.stride % self.rare_every
        return place == min(RARE_FIRST, self.rare_every - 1) and self.chooses(step)

    @property
    def between_rare(self) -> int:
        """The steps from one of these to the next one, as far as is known now."""
        return self.block * self.stride * self.rare_every

    def has_snapshots(self, step: int, every: int) -> bool:
        """Return whether a step has automatic snapshots, by its number alone: every n-th, and ever fewer."""
        place = step // self.block // self.stride
        if not self.chooses(step) or place % every != min(RARE_FIRST, every - 1):
            return False
        many = place // every
        return many & ((1 << max(0, many.bit_length() - FINE)) - 1) == 0

    def took_snapshots(self, spent_s: float, every: int) -> None:
        """Record how long automatic snapshots took in one of so many captured steps."""
        self._snapshots_s = spent_s / every

    @property
    def wants_timing(self) -> bool:
        """Return whether to time the captured step that begins, because no step is ever skipped."""
        if self._is_free and not self._whole.are_enough and len(self._spent) < TIMED_STEPS:
            return True  # the first ones included: what they take is known then
        if self._is_limited or self.stride > 1 or self._seen < WARM_UP:
            return False
        return self._seen % self.timed_every == 0

    def next_timed(self, step: int) -> int:
        """Return the first step after a captured one that is to be timed; -1 if none is, because steps are skipped."""
        if self._is_limited or self.stride > 1:
            return -1
        return step + self.timed_every - self._seen % self.timed_every

    @property
    def timed_every(self) -> int:
        """The steps from one timed step to the next, if every step is captured."""
        return TIME_EVERY if len(self._spent) == WINDOW else TIME_FIRST_EVERY

    def _compare(self) -> None:
        plain = _lower_quartile(self._plain)
        extra, histograms = self._extras()
        ways = zip(self._went, (self._short, self._long), strict=True)
        shares = [many / sum(self._went) * _lower_quartile(times) for many, times in ways if times]
        followed = min(sum(shares), MOST_FOLLOWED * plain)
        self._measure(extra * plain, plain - followed, followed + self._light_s, histograms * plain)

    def _extras(self) -> tuple[float, float]:
        """Return the share that capturing adds to a step on average, and what histograms add to a step with them."""
        if not (self._whole.are_enough and self._lean.are_enough):
            return (self._whole if self._whole.are_enough else self._lean).excess, 0.0
        whole, lean = self._whole.excess, self._lean.excess
        if self.thinning == 1:  # times of lean steps are old
            return whole, whole - min(whole, lean)
        histograms = max(0.0, whole - lean)
        return lean + histograms / self.thinning, histograms

    def _measure(self, extra: float, plain: float, following: float = 0.0, histograms: float = 0.0) -> None:
        extra_s = extra + self._snapshots_s + self.background_s
        self.cost = extra_s / plain if plain > 0 else 0.0
        self.following = following / plain if plain > 0 else 0.0
        self._histograms = histograms / plain if plain > 0 else 0.0

    def _estimate(self, budget: float) -> None:
        if not self._knows_all:
            return
        self._compare()
        moments = self.cost - self._histograms / self.thinning
        found = strides_within(budget, moments, self._histograms, self.following, self.every, self._sketches)
        if found != (self.stride, self.thinning):  # the same objects else: the extension compares them
            self.stride, self.thinning = found
        self.cost = moments + self._histograms / self.thinning


def strides_within(
    budget: float, moments: float, histograms: float, following: float, every: int = 1, sketches: int | None = None
) -> tuple[int, int]:
    """Return the steps from one captured step to the next, and captured steps from one with histograms to the next.

    The shares are what capturing adds to a step without histograms, what these add, and what every step takes.
    """
    options = [sketches] if sketches else [1 << power for power in range(SPARSEST.bit_length())]
    return min((stride_within(budget, moments + histograms / each, following, every), each) for each in options)


def stride_within(budget: float, cost: float, following: float, every: int = 1) -> int:
    """Return the steps from one captured step to the next, by the shares that capturing and every step add."""
    wanted = cost / max(LEAST * budget, AIM * budget - following) / every
    power = 1 << max(0, math.ceil(math.log2(wanted))) if wanted > 1 else 1
    return every * min(MAX_STRIDE, power)


class Pairs:
    """Captured steps of a sort, each with an uncaptured one from just before it.

    A machine becomes slower and faster. Of two windows, one with a step in 64 would be older than the other.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self.before: deque[float] = deque(maxlen=1)  # seconds of uncaptured steps that have no partner yet
        self._times: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def take_turns(self, block: int) -> None:
        """Pair steps that have the same place in blocks of so many."""
        self.before = deque(self.before, maxlen=block)

    def add(self, elapsed_s: float) -> None:
        """Note the time of a captured step, if there is an uncaptured one to compare it with."""
        if self.before:
            self._times.append((elapsed_s, self.before.popleft()))

    @property
    def are_enough(self) -> bool:
        """Whether there are enough to compare."""
        return len(self._times) >= self._least

    @property
    def excess(self) -> float:
        """The share by which captured steps take longer."""
        captured, plain = (_lower_quartile(times) for times in zip(*self._times, strict=True))
        return max(0.0, captured / plain - 1) if plain > 0 else 0.0


def _lower_quartile(times: Collection[float]) -> float:
    return sorted(times)[len(times) // 4]


class JumpFinder:
    """Detects when a logged value becomes non-finite, or a loss jumps far above its earlier values."""

    __slots__ = ("_bad", "_deviation", "_mean", "_seen")

    def __init__(self) -> None:
        self._bad = False
        self._mean = 0.0
        self._deviation = 0.0
        self._seen = 0

    def jumped(self, value: float) -> bool:
        """Check the next value. Only the first of several non-finite ones is a jump."""
        was_bad, self._bad = self._bad, not math.isfinite(value)
        if self._bad:
            return not was_bad
        off = abs(value - self._mean)
        jumped = self._seen >= 8 and value - self._mean > 8 * self._deviation + 1e-3 * abs(self._mean)
        self._seen += 1
        rate = max(0.1, 1 / self._seen)
        if self._seen > 1:
            self._deviation += rate * (off - self._deviation)
        self._mean += rate * (value - self._mean)
        return jumped


MAX_NAMES: Final = 4096


class Between:
    """Tells numbers of the step that ended from numbers of the step that is about to begin.

    Most loops log after `optimizer.step()`: what they log belongs to the step that just ended. Others log a learning
    rate at the top, before the forward pass. Both come between two steps. But only the latter are also logged
    before the first backward pass ends, when there is no step that they could belong to but the first.
    """

    def __init__(self) -> None:
        self._ahead: set[str] = set()  # names that are logged before their step runs, or in the middle of it
        self._behind: set[str] = set()

    def note_first(self, names: Iterable[str]) -> None:
        """Note names that are logged before the first backward pass has ended."""
        for name in names:
            if len(self._ahead) < MAX_NAMES:
                self._ahead.add(name)

    def is_behind(self, name: str, has_run: bool | None) -> bool:
        """Return whether a number, logged before the step's first backward pass, belongs to the step that ended.

        `has_run`: whether a module has run since then; None if it was not checked, because the step isn't captured.
        """
        if name in self._ahead or name in self._behind:
            return name in self._behind
        if has_run is not None and len(self._ahead) + len(self._behind) < MAX_NAMES:
            (self._ahead if has_run else self._behind).add(name)
        return not has_run
