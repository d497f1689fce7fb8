"""The table of thresholds: what a user may change, with ranges and meanings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hookcore.errors import ArgumentError, shown


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with, and the range of what may be given instead."""

    name: str
    default: float
    least: float
    most: float
    help: str
    whole: bool = False

    def read(self, rule: str, given: object) -> float:
        """Return a given number. Raises ArgumentError if it isn't a number or is out of range."""
        number = float("nan") if isinstance(given, bool) or not isinstance(given, int | float) else float(given)
        if not (self.least <= number <= self.most) or (self.whole and number != int(number)):
            what = "a whole number" if self.whole else "a number"
            raise ArgumentError(
                f"{self.name}={shown(given)} is invalid for the rule {rule}: it must be {what} from {self.least:g} "
                f"to {self.most:g} ({self.help}; default: {self.default:g})"
            )
        return number


def _captured(default: int, most: int) -> Threshold:
    help = "captured steps in which this must hold"
    return Threshold("captured_steps", default, 1, most, help, whole=True)


def _logged(default: int, most: int = 100_000) -> Threshold:
    return Threshold("least_logged", default, 2, most, "values of the loss needed to judge it", whole=True)


def _results(default: int) -> Threshold:
    return Threshold("results", default, 1, 1000, "results of the probe in which this must hold", whole=True)


# Taking logarithms, the rules need factors above 1.
# Users write these names, so `least_logged` and the like stay, although limits in the code are called MIN_ and MAX_.
_DEPTH: Final = (
    Threshold("decades", 5.0, 0.5, 40, "powers of ten between the first layers and the last ones"),
    Threshold("least_layers", 8, 3, 10_000, "layers that a stack must have", whole=True),
    Threshold("monotone", 0.8, 0.1, 1, "how steadily values must change with depth; 1: from each layer to the next"),
)
THRESHOLDS: Final[Mapping[str, tuple[Threshold, ...]]] = {
    "loss": (Threshold("factor", 100.0, 1.1, 1e12, "times its lowest value"), _logged(16)),
    "learning-rate-too-high": (
        Threshold("decades", 3.0, 0.5, 300, "powers of ten by which the loss grows"),
        Threshold("per_step", 0.03, 1e-6, 300, "powers of ten per step; slower growth isn't the learning rate's"),
        Threshold("falls", 0.7, 0.01, 1, "times the first loss; below it, a loss that came back has fallen"),
        Threshold("share", 0.1, 1e-6, 1e6, "update as a share of the weights, while the loss doesn't fall"),
    ),
    "learning-rate-too-low": (
        Threshold("share", 1e-5, 1e-30, 1, "update as a share of the weights, while the loss doesn't fall"),
        _logged(200),
    ),
    "exploding": (
        Threshold("factor", 20.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("error_factor", 1e4, 1.1, 1e30, "times its usual value, to be an error"),
        Threshold("large", 1e4, 1, 1e38, "magnitude that is too large, whatever the loss does"),
        Threshold("worse", 1.2, 1, 1000, "times the previous loss, for a loss to count as worse"),
        *_DEPTH,
    ),
    "vanishing": (
        Threshold("factor", 100.0, 1.1, 1e12, "times below its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations below its usual value"),
        Threshold("beside_factor", 1e4, 1.1, 1e30, "times below the gradients of other layers"),
        Threshold("shrinks", 3.0, 1.1, 1e6, "times below its usual value, if it is also that far below other layers"),
        Threshold("alike", 10.0, 1.1, 1e6, "times as far as other layers; if it fell less far, it is a note"),
        *_DEPTH,
    ),
    "no-gradient": (Threshold("share", 0.5, 0.01, 1, "share of the layers"), _captured(8, 32)),
    "dead": (Threshold("zero_fraction", 0.999, 0.1, 1, "share of the values that are zero"), _captured(16, 64)),
    "saturated-activation": (
        Threshold("slope", 0.02, 1e-6, 1, "share of the gradient that passes"),
        _captured(16, 64),
    ),
    "overfit": (
        Threshold("factor", 1.5, 1.001, 1e6, "times the lowest validation loss"),
        Threshold("falls", 0.9, 0.01, 1, "times the earlier training loss; below it, the loss is still falling"),
        _logged(12, 1000),
        Threshold("since_best", 6, 1, 1000, "values since the lowest one", whole=True),
    ),
    "loss-not-decreasing": (
        _logged(200),
        Threshold("falls", 0.98, 0.01, 1, "times the first losses; below it, the loss has fallen"),
    ),
    "bf16-update-lost": (
        Threshold("share", 0.95, 0.1, 1, "share of the values with a gradient that don't change"),
        Threshold("least_fed", 0.1, 0.001, 1, "share of the values that must have a gradient"),
        _captured(32, 64),
    ),
    "large-update": (
        Threshold("share", 0.3, 1e-6, 1e6, "update as a share of the weight"),
        Threshold("relative_share", 0.03, 1e-9, 1e6, "the same share, if the update is also far above its usual value"),
        Threshold("factor", 10.0, 1.1, 1e12, "times its usual value"),
        Threshold("least_values", 8, 1, 1e9, "values that the weight must have", whole=True),
    ),
    "stalled": (
        Threshold("share", 6e-8, 1e-30, 1, "update as a share of the weight"),
        Threshold("factor", 1e4, 1.1, 1e30, "times below its usual value"),
    ),
    "all-zero": (_captured(16, 64),),
    "tensor-variance": (
        Threshold("spread", 1e-5, 0, 1, "standard deviation as a share of the root mean square"),
        Threshold("varied", 1e-3, 0, 1, "the same share at first, for modules without a weight"),
        Threshold("least_values", 16, 2, 1e9, "values that an activation must have", whole=True),
        _captured(16, 64),
    ),
    "poor-weight-initialization": (
        Threshold("factor", 8.0, 1.1, 1e12, "times as large, or as small, as the layer before"),
        Threshold("in_a_row", 3, 2, 1000, "layers in a row", whole=True),
        Threshold("equal", 1e-6, 0, 1, "standard deviation as a share of the root mean square, to count as equal"),
    ),
    "batch-norm-drift": (
        Threshold("factor", 3.0, 1.1, 1e12, "times as large, or as small, as in training"),
        Threshold("evaluations", 3, 1, 64, "captured evaluations in which this must hold", whole=True),
        Threshold("settled", 100, 0, 1e9, "steps at the start that are not judged", whole=True),
        Threshold("closer", 0.95, 0, 1, "times the first difference, in powers of ten; below it, it is getting closer"),
    ),
    "gradient-clipped-always": (
        _captured(30, 64),
        Threshold("share", 0.95, 0.1, 1, "share of the captured steps"),
        Threshold("same", 1e-4, 0, 1, "share by which the norm may differ"),
    ),
    "dead-channels": (Threshold("share", 0.5, 0.01, 1, "share of the channels"), _results(3)),
    "rank-collapse": (
        Threshold("share", 0.25, 0.001, 1, "share of the initial directions"),
        Threshold("least_rank", 4.0, 1, 1e6, "initial directions that are needed"),
        Threshold("single", 1.05, 1, 1e6, "directions or fewer, to be a warning even if the loss falls"),
        _results(3),
    ),
    "attention-entropy-collapse": (
        Threshold("entropy", 0.05, 0, 1, "entropy of the head that looks at the most tokens"),
        Threshold("least_entropy", 0.2, 0, 1, "initial entropy of that head"),
        _results(3),
    ),
    "slow-data-loading": (
        Threshold("share", 0.5, 0.01, 1, "share of a step's time"),
        Threshold("least_s", 0.005, 0, 1e6, "seconds per step"),
        Threshold("steps", 8, 2, 1000, "measured steps", whole=True),
    ),
    "long-evaluation": (
        Threshold("share", 0.5, 0.01, 1, "share of the time"),
        Threshold("least_s", 60.0, 0, 1e9, "seconds that the training must have taken"),
    ),
    "idle-gpu": (
        Threshold("share", 0.3, 0.001, 1, "share of the time in which the GPU is busy"),
        Threshold("samples", 60, 2, 1000, "samples, one every two seconds", whole=True),
    ),
    "late-rank": (
        Threshold("share", 0.05, 0.001, 100, "of a step's time, by which the rank is later than the first one"),
        Threshold("mostly", 0.6, 0.1, 1, "share of the steps in which the same rank is last"),
        Threshold("steps", 8, 2, 64, "captured steps of all ranks", whole=True),
    ),
    "spike": (
        Threshold("factor", 5.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 8.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("least_spread", 0.02, 0, 10, "smallest standard deviation to assume, in powers of ten"),
        Threshold("rare", 4, 1, 64, "columns of the window with a spike; a tensor with more is noisy", whole=True),
        Threshold("warning_factor", 100.0, 1.1, 1e30, "times its usual value, to be a warning"),
    ),
    "loss-spike": (
        Threshold("factor", 5.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 8.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("share_of_first", 0.25, 0, 1e6, "times the first losses; smaller jumps are ignored"),
    ),
}


def defaults_of(rule: str) -> dict[str, float]:
    """Return the default thresholds of a rule."""
    return {each.name: each.default for each in THRESHOLDS.get(rule, ())}
