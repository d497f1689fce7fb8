"""The speed of a run, and what watching it costs: the numbers, and the one sentence that every page and the API use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hookcore.findings.keyfigures import newest_of
from hookcore.findings.times import Rates, rates_of, recent
from hookcore.records.vocabulary import COST, EFFECTIVE_COST, FOLLOWING_COST, FORMAT, HISTOGRAM_STRIDE, STRIDE
from hookcore.store import Store

from ..runs import Run

# What watching a run costs: the numbers, and the one sentence that every page and the API use for them.


@dataclass(frozen=True, slots=True)
class Cost:
    """What watching adds to a run's time. `added` is a share averaged over all steps, captured or not.

    All shares are of the time of a step without hookcore, so that no two of them contradict each other.
    """

    added: float | None  # None until it has been measured
    budget: float | None  # None is no limit
    every: int  # as requested
    stride: int  # as captured
    left_out: int | None  # steps that were not captured; None if the run isn't in memory
    histograms: int = 0  # in every n-th step, histograms are counted; 0 if that is unknown
    allowance: float = 0.0  # seconds a minute that the budget doesn't limit
    following: float = 0.0  # the share that following adds to every step, which can't be left out
    longer: float | None = None  # the share that is added to a captured step; None if unknown
    paused: bool = False
    is_live: bool = True
    origin: str = ""  # of an imported run, such as "TensorBoard": hookcore wasn't there

    @property
    def headline(self) -> str:
        """What watching adds, or that this isn't known."""
        if self.origin:
            return "not watched"
        return self.average if self.added is None else f"adds {self.average} on average"

    @property
    def limit(self) -> str:
        """The budget in words, and why a short training may cost more."""
        if self.budget is None:
            return "no limit"
        if self.following > self.budget:
            return f"limit {100 * self.budget:.3g}%, but following the steps alone adds {_percent(self.following)}"
        within = self.added is not None and self.added > self.budget and self.allowance > 0
        return f"limit {100 * self.budget:.3g}%{f' beyond {self.allowance:g} s a minute' if within else ''}"

    @property
    def captures(self) -> str:
        """Which steps are captured, in words."""
        if self.paused:
            return "capture paused"
        rarer = f"; {'counts' if self.is_live else 'counted'} {self.histograms_words}" if self.histograms_words else ""
        return f"{'captures' if self.is_live else 'captured'} {self.often}{rarer}"

    @property
    def average(self) -> str:
        """What watching adds to the time of all steps."""
        return ("not measured yet" if self.is_live else "not measured") if self.added is None else _percent(self.added)

    @property
    def captured_words(self) -> str | None:
        """What is added to a captured step; None if that isn't known, or if it is the average."""
        return None if self.longer is None or self.stride == 1 else _percent(self.longer)

    @property
    def following_words(self) -> str | None:
        """What following the steps adds to each; None if this wasn't measured."""
        return _percent(self.following) if self.following else None

    @property
    def often(self) -> str:
        """How many steps are captured, in words. If that was different before, the words are about now or the end."""
        if self.stride > 1:
            return f"every {ordinal(self.stride)} step"
        when = "" if not self.left_out else " now" if self.is_live else " at the end"
        return f"every step{when}"

    @property
    def histograms_words(self) -> str:
        """In which steps histograms are counted; empty if they are in all captured ones."""
        return f"histograms in every {ordinal(self.histograms)} step" if self.histograms > self.stride else ""

    @property
    def terms(self) -> str:
        """Everything in the sentence that follows the headline."""
        if self.origin:
            return f"imported from {self.origin}"
        return f"{self.limit}; {self.captures}"

    @property
    def sentence(self) -> str:
        """The cost in one sentence."""
        cost = "cost " if self.added is None and not self.origin else ""
        return f"{cost}{self.headline}, {self.terms}"

    @property
    def asked(self) -> str:
        """The requested stride as an ordinal number."""
        return ordinal(self.every)

    @property
    def is_limited(self) -> bool:
        """Whether the budget allows fewer steps than requested."""
        return self.stride > self.every


def cost_of(run: Run) -> Cost:
    """Return the cost of a run: the newest scalars that its trainer sent, else the settings it last reported."""
    settings, store = run.info.settings, run.store
    every = _whole(settings.get("every")) or 1
    stride = _whole(_newest(store, STRIDE)) or _whole(settings.get("stride")) or every
    return Cost(
        added=_added(settings, store, stride),
        budget=_share(settings.get("budget")),
        every=every,
        stride=stride,
        histograms=_whole(_newest(store, HISTOGRAM_STRIDE)) or _whole(settings.get("histogram_stride")) or 0,
        left_out=_left_out(run),
        allowance=_share(settings.get("allowance")) or 0.0,
        following=_share(_newest(store, FOLLOWING_COST)) or _share(settings.get("following_cost")) or 0.0,
        longer=_longer(settings, store),
        paused=run.is_paused,
        is_live=run.state == "live",
        origin=str(run.info.facts.get(FORMAT) or ""),
    )


def _added(settings: dict[str, Any], store: Store, stride: int) -> float | None:
    effective = _share(_newest(store, EFFECTIVE_COST))
    effective = _share(settings.get("effective_cost")) if effective is None else effective
    if effective is not None:
        return effective
    per_capture = _longer(settings, store)
    return None if per_capture is None else per_capture / stride


def _longer(settings: dict[str, Any], store: Store) -> float | None:
    measured = _share(_newest(store, COST))
    return _share(settings.get("cost")) if measured is None else measured


def _left_out(run: Run) -> int | None:
    """Return how many steps are not among the captured ones, so that both add up to all steps of the run."""
    if FORMAT in run.info.facts:
        return 0
    return max(0, run.store.steps().length - run.store.captured()) if run.loaded else None


def _newest(store: Store, name: str) -> float | None:
    found = newest_of(store, name)
    return None if found is None else found.value


def _share(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _whole(value: Any) -> int | None:
    share = _share(value)
    return None if share is None or not math.isfinite(share) else int(share)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "more than can be measured"
    return "less than 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 11th, 1,000th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def run_rates(run: Run, first: int | None = None, last: int | None = None) -> Rates:
    """Return the rates of some steps of a run; without any, of the newest ones if it is live, else of all."""
    is_whole = (first, last) == (None, None)
    return rates_of(run.store, recent(run.store) if is_whole and run.state == "live" else first, last)
