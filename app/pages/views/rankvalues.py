"""The values that the page Ranks can show by rank and step, with their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.records import Tap
from hookcore.records.vocabulary import ELAPSED, GRADIENT_WAIT, OWN, REDUCTION_WAIT

from ...runs import JointRun

SECONDS: Final = "seconds per step"
WAITS: Final[dict[str, str]] = {
    REDUCTION_WAIT: "seconds of waiting for the reduction",
    GRADIENT_WAIT: "seconds from the last local gradient to the optimizer step",
}
ABOUT_WAITS: Final[dict[str, str]] = {
    REDUCTION_WAIT: (
        "From the moment when a rank's last bucket of gradients was ready until all its reductions had ended, measured "
        "by the communication hook. It includes waiting for slower ranks and the communication itself."
    ),
    GRADIENT_WAIT: (
        "From a rank's last local activation gradient to the optimizer step. It includes waiting for slower "
        "ranks, the communication itself, the gradients of the first layer's weights, and your own code in between."
    ),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A throughput of each rank in the table: a field of `answers.Rank`."""

    field: str
    words: str
    about: str


RATES: Final = (
    Rate("samples_per_second", "Samples/s", "Samples per second that the rank's model received, as last measured"),
    Rate("tokens_per_second", "Tokens/s", "Tokens per second that the rank's model received, as last measured"),
)
MAX_TAPS: Final = 500  # that the box suggests


def logged_values(joint: JointRun) -> dict[str, str]:
    """Return the logged values that can be chosen: words, and the name of each."""
    names = joint.reader.scalars().names
    own = {SECONDS: ELAPSED} | {WAITS[name]: name for name in WAITS if name in names}
    return own | {name: name for name in names if not name.startswith(OWN)}


def known_rates(ranks: Sequence[answers.Rank]) -> list[Rate]:
    """Return the throughputs that are known of some rank."""
    return [rate for rate in RATES if any(getattr(each, rate.field) is not None for each in ranks)]


def suggested_taps(joint: JointRun) -> list[str]:
    """Return the labels of taps that the box suggests."""
    return [tap.label for tap in joint.reader.taps().taps[:MAX_TAPS]]


def chosen_value(joint: JointRun, value: str) -> Tap | str:
    """Return the logged value or the tap that words mean. Raises ArgumentError if there is neither."""
    name = logged_values(joint).get(value or SECONDS)
    if name is not None:
        return name
    try:
        return joint.reader.find(value).record
    except ArgumentError as error:
        raise ArgumentError(f"{error}; or name a logged value, such as {SECONDS!r}") from None
