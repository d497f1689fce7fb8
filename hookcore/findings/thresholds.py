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
    help = "captured steps in which it must be so"
    return Threshold("captured_steps", default, 1, most, help, whole=True)


def _logged(default: int, most: int = 100_000) -> Threshold:
    return Threshold("least_logged", default, 2, most, "values of the loss before it is judged", whole=True)


def _results(default: int) -> Threshold:
    return Threshold("results", default, 1, 1000, "results of the probe in which it must be so", whole=True)


# Taking logarithms, the rules need factors above 1.
# Users write these names, so `least_logged` and the like stay, although limits in the code are called MIN_ and MAX_.
_DEPTH: Final = (
    Threshold("decades", 5.0, 0.5, 40, "powers of ten between the first layers and the last ones"),
    Threshold("least_layers", 8, 3, 10_000, "layers that a stack must have", whole=True),
    Threshold("monotone", 0.8, 0.1, 1, "how steadily it must change with depth; 1: from each layer to the next"),
)
THRESHOLDS: Final[Mapping[str, tuple[Threshold, ...]]] = {
    "loss": (Threshold("factor", 100.0, 1.1, 1e12, "times its lowest value"), _logged(16)),
    "exploding": (
        Threshold("factor", 20.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("error_factor", 1e4, 1.1, 1e30, "times its usual value, from which on it is an error"),
        Threshold("large", 1e4, 1, 1e38, "a magnitude that is too large whatever the loss does"),
        Threshold("worse", 1.2, 1, 1000, "times as large as before, from which on a loss counts as worse"),
        *_DEPTH,
    ),
    "vanishing": (
        Threshold("factor", 100.0, 1.1, 1e12, "times below its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations below its usual value"),
        Threshold("beside_factor", 1e4, 1.1, 1e30, "times below the gradients of other layers"),
        Threshold("shrinks", 3.0, 1.1, 1e6, "times below its usual value, if it is so small beside others"),
        Threshold("alike", 10.0, 1.1, 1e6, "times as much as other layers: if it fell less, it is a note"),
        *_DEPTH,
    ),
    "no-gradient": (Threshold("share", 0.5, 0.01, 1, "of the layers"), _captured(8, 32)),
    "dead": (Threshold("zero_fraction", 0.999, 0.1, 1, "of the values that are zero"), _captured(16, 64)),
    "saturated-activation": (
        Threshold("slope", 0.02, 1e-6, 1, "the share of the gradient that passes"),
        _captured(16, 64),
    ),
    "overfit": (
        Threshold("factor", 1.5, 1.001, 1e6, "times the lowest loss of the validation"),
        Threshold("falls", 0.9, 0.01, 1, "times what it was: below it, the loss of the training still falls"),
        _logged(12, 1000),
        Threshold("since_best", 6, 1, 1000, "values since the lowest one", whole=True),
    ),
    "loss-not-decreasing": (
        _logged(200),
        Threshold("falls", 0.98, 0.01, 1, "times what it was at first: below it, the loss has fallen"),
    ),
    "bf16-update-lost": (
        Threshold("share", 0.95, 0.1, 1, "of the values that have a gradient and don't change"),
        Threshold("least_fed", 0.1, 0.001, 1, "of the values must have a gradient"),
        _captured(32, 64),
    ),
    "large-update": (
        Threshold("share", 0.3, 1e-6, 1e6, "of the weight"),
        Threshold("relative_share", 0.03, 1e-9, 1e6, "of the weight, if it is also far above its usual value"),
        Threshold("factor", 10.0, 1.1, 1e12, "times its usual value"),
        Threshold("least_values", 8, 1, 1e9, "values that the weight must have", whole=True),
    ),
    "stalled": (
        Threshold("share", 6e-8, 1e-30, 1, "of the weight"),
        Threshold("factor", 1e4, 1.1, 1e30, "times below its usual value"),
    ),
    "all-zero": (_captured(16, 64),),
    "tensor-variance": (
        Threshold("spread", 1e-5, 0, 1, "the standard deviation as a share of the root mean square"),
        Threshold("varied", 1e-3, 0, 1, "the same share at first, of activations of modules without a weight"),
        Threshold("least_values", 16, 2, 1e9, "values that an activation must have", whole=True),
        _captured(16, 64),
    ),
    "poor-weight-initialization": (
        Threshold("factor", 8.0, 1.1, 1e12, "times as large, or as small, as the layer before"),
        Threshold("in_a_row", 3, 2, 1000, "layers in a row", whole=True),
        Threshold("equal", 1e-6, 0, 1, "the standard deviation as a share of the root mean square, if all are equal"),
    ),
    "batch-norm-drift": (
        Threshold("factor", 3.0, 1.1, 1e12, "times as large, or as small, as in training"),
        Threshold("evaluations", 3, 1, 64, "captured evaluations in which it must be so", whole=True),
        Threshold("settled", 100, 0, 1e9, "steps at the start in which nothing is said", whole=True),
        Threshold("closer", 0.95, 0, 1, "times the first difference, in powers of ten: below it, it comes closer"),
    ),
    "gradient-clipped-always": (
        _captured(30, 64),
        Threshold("share", 0.95, 0.1, 1, "of the captured steps"),
        Threshold("same", 1e-4, 0, 1, "the share by which the norm may differ"),
    ),
    "dead-channels": (Threshold("share", 0.5, 0.01, 1, "of the channels"), _results(3)),
    "rank-collapse": (
        Threshold("share", 0.25, 0.001, 1, "of the directions at first"),
        Threshold("least_rank", 4.0, 1, 1e6, "directions at first"),
        Threshold("single", 1.05, 1, 1e6, "directions, up to which it is a warning even if the loss falls"),
        _results(3),
    ),
    "attention-entropy-collapse": (
        Threshold("entropy", 0.05, 0, 1, "of the head that looks at most tokens"),
        Threshold("least_entropy", 0.2, 0, 1, "of that head at first"),
        _results(3),
    ),
    "spike": (
        Threshold("factor", 5.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 8.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("least_spread", 0.02, 0, 10, "powers of ten: the least standard deviation that is assumed"),
        Threshold("rare", 4, 1, 64, "columns of the window: a tensor with more spikes is noisy", whole=True),
        Threshold("warning_factor", 100.0, 1.1, 1e30, "times its usual value, from which on it is a warning"),
    ),
    "loss-spike": (
        Threshold("factor", 5.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 8.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("share_of_first", 0.25, 0, 1e6, "times what the loss was at first: nothing is said below it"),
    ),
}


def defaults_of(rule: str) -> dict[str, float]:
    """Return the thresholds of a rule as nobody changed them."""
    return {each.name: each.default for each in THRESHOLDS.get(rule, ())}
