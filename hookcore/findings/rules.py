"""The table of rules: what each finds, its meaning, and its thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from hookcore.errors import ArgumentError, shown
from hookcore.findings.advice import ADVICE
from hookcore.findings.finding import Rule, RuleName
from hookcore.records import Severity
from hookcore.store import Store

# The table of thresholds: what a user may change, with ranges and meanings.


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


def _measured(default: int) -> Threshold:
    return Threshold("measured", default, 2, 1000, "newest measurements in which this must hold", whole=True)


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
        Threshold("same", 2e-3, 0, 1, "share by which the factors of gradients clipped together may differ"),
    ),
    "gradient-underflow": (
        Threshold(
            "factor", 4.0, 1, 1e6, "times the smallest number of float16, below which values that aren't zero are"
        ),
        Threshold("share", 0.1, 0.001, 1, "share of the values that are zero"),
        _captured(8, 64),
    ),
    "float8-clipped": (
        Threshold("factor", 2.0, 1, 1e30, "times the largest number of the format, with its scale"),
        _measured(3),
    ),
    "state-stays-zero": (_measured(3),),
    "second-moments": (
        Threshold("factor", 1e6, 1.1, 1e30, "times their usual size"),
        Threshold("zero", 0.5, 0.01, 1, "share of the values that are zero, although their gradients aren't"),
        _measured(3),
    ),
    "spike-precursor": (
        Threshold("factor", 2.0, 1.1, 1e12, "times its usual size"),
        Threshold("before", 50, 1, 1000, "steps before the jump of the loss", whole=True),
        Threshold("least_steps", 16, 4, 1000, "captured steps before, which show the usual size", whole=True),
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
    "dead-expert": (
        Threshold("share", 0.01, 0, 1, "of an even share of the choices, or less"),
        Threshold("even", 100, 1, 1e9, "choices that an even share must be; more measurements count until it is"),
        _measured(8),
    ),
    "router-collapse": (
        Threshold("share", 0.25, 0.001, 1, "share of the experts; at least one"),
        Threshold("choices", 0.95, 0.5, 1, "share of the choices that go to them"),
        _measured(8),
    ),
    "uneven-expert-ranks": (Threshold("factor", 1.5, 1.01, 1e6, "times an even share of the choices"), _measured(8)),
    "attention-logit-growth": (
        Threshold("logit", 100.0, 0, 1e30, "largest logit"),
        Threshold("factor", 4.0, 1, 1e30, "times its initial size"),
        _results(3),
    ),
    "attention-first-token": (
        Threshold("weight", 0.95, 0, 1, "weight of the first token"),
        Threshold("initial", 0.5, 0, 1, "largest weight of it at first"),
        _results(3),
    ),
    "dead-heads": (Threshold("share", 0.01, 0, 1, "times the output of the usual head"), _results(3)),
    "outlier-channel": (Threshold("factor", 1000.0, 2, 1e30, "times the median channel"), _results(3)),
    "dominant-micro-batch": (
        Threshold("factor", 10.0, 1.1, 1e12, "times the norm of the usual other micro-batch of the step"),
        Threshold("share", 0.8, 0.01, 1, "share of the gradient of the step"),
        Threshold("beyond", 3.0, 1, 1e12, "times the largest norm before, unless it is mostly the same micro-batch"),
        Threshold("often", 8, 2, 64, "measured steps with the same such micro-batch", whole=True),
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


def _rule(name: RuleName, severity: Severity, title: str, text: str, **fixed: float) -> tuple[RuleName, Rule]:
    limits = {**defaults_of(name), **fixed}
    advice = ADVICE[name]
    about = advice.causes, advice.tries, advice.known_as
    return name, Rule(name, severity, title, text, MappingProxyType(limits), *about)


# "spreads" are standard deviations of the logarithm over the past columns, estimated from its quartiles and at least
# `least_spread`; "factor" is a ratio of magnitudes. Findings of one severity are shown in this order.
RULES: Final[Mapping[RuleName, Rule]] = MappingProxyType(
    dict(
        (
            _rule(
                "nonfinite",
                "error",
                "NaN or infinity",
                "A tensor contained a NaN or an infinity. The finding names the first such tensor, by step and then by "
                "the order in which the model computes, and counts the modules that followed. The step stays exact for "
                "the whole run. An episode that is over is a warning. It is a note if it was long ago, or if a "
                "gradient scaler skipped the step.",
            ),
            _rule(
                "loss",
                "error",
                "Loss problem",
                "The loss is NaN or infinite, or far above its lowest value and still near its peak: the training "
                'diverged. Only scalars with "loss" in their name count, and only positive ones can diverge.',
            ),
            _rule(
                "learning-rate-too-high",
                "error",
                "Learning rate too high",
                "The loss grew by powers of ten within a few steps, from the start of the run, or step by step, or "
                "after the learning rate rose: then the rate caused what followed, such as NaN. It is a warning if the "
                "loss came back but never fell, or if it doesn't fall while each step changes the weights by a tenth. "
                "A loss that jumps in one step at a constant rate has another cause. Needs a logged loss that is "
                "positive.",
            ),
            _rule(
                "learning-rate-too-low",
                "warning",
                "Learning rate too low",
                "The loss doesn't fall, and a step changes the weights by less than a hundred-thousandth, although "
                "about a thousandth is common. A rate that is still rising, as in a warm-up, isn't judged. Needs the "
                "kind `update`, which is measured in a few steps by default.",
            ),
            _rule(
                "exploding",
                "warning",
                "Exploding",
                "The root mean square of a tensor stays far above its usual value while the loss gets worse, exceeds "
                "10,000, or is 10,000 times its earlier value. Growth while the loss falls is learning. If no loss is "
                "logged, growth alone is a note. The rule also finds values that grow with depth.",
            ),
            _rule(
                "vanishing",
                "warning",
                "Vanishing",
                "A gradient is far below its usual value, or it is shrinking and tiny compared with those of the other "
                "layers. If all gradients fell by about the same factor, as at the end of a training, it is a note. "
                "The rule also finds, from the first steps, gradients or activations that get 100,000 times smaller "
                "over the depth of the model, and gradients that drop by as much at one layer.",
            ),
            _rule(
                "no-gradient",
                "error",
                "No gradient",
                "At least half of the layers had a gradient of exactly zero in each of their newest captured steps: "
                "these layers no longer learn.",
                among=32,
            ),
            _rule(
                "dead",
                "warning",
                "Dead",
                "The activation is all zeros in each of the layer's newest captured steps, for example because a ReLU "
                "no longer gets any positive input.",
                among=64,
            ),
            _rule(
                "saturated-activation",
                "warning",
                "Saturated",
                "A Sigmoid or Tanh module is so close to its bounds that less than a fiftieth of the gradient passes, "
                "in each of its newest captured steps. It is a note if the module saturated while the loss fell, as "
                "the last sigmoid of a classifier does. Activations that are called as functions aren't checked.",
                among=64,
            ),
            _rule(
                "not-in-optimizer",
                "warning",
                "Not in an optimizer",
                "Parameters get gradients, but aren't in any optimizer that takes steps, although earlier parameters "
                "of the model are. If only the first layers are left out, as when fine-tuning a head, it is an event "
                "instead. The trainer checks this at steps 24, 48, 96, and 192, then every 128 steps, and reports what "
                "it finds twice.",
                first_report=48,
            ),
            _rule(
                "frozen-by-mistake",
                "warning",
                "No gradient arrives",
                "Parameters are in an optimizer and require gradients, and their modules run, but they get no gradient "
                "or no longer get one, while later layers do: the graph is cut after the named layer. An unused branch "
                "isn't reported. The trainer checks this at a few steps, and reports what it finds twice.",
                first_report=48,
            ),
            _rule(
                "duplicate-in-optimizers",
                "warning",
                "In two optimizers",
                "A parameter is in more than one optimizer that takes steps, so each step changes it twice. "
                "The trainer checks this at a few steps, and reports what it finds twice.",
                first_report=48,
            ),
            _rule(
                "overfit",
                "warning",
                "Overfitting",
                "The validation loss has stayed far above its lowest value, while the training loss is still falling. "
                'A loss with "val", "valid", "eval", "test", or "dev" in its name is a validation loss.',
            ),
            _rule(
                "loss-not-decreasing",
                "info",
                "Loss doesn't fall",
                "The training loss has never fallen below its first values. Some losses are not meant to fall, such as "
                "those in a GAN or in reinforcement learning, so this is a note.",
            ),
            _rule(
                "unchanged-tensor",
                "warning",
                "Unchanged",
                "The values of a weight have not changed since the first steps, although its gradient is not zero and "
                "other weights change. If no weight changes, or if this one once did, it is a note: the learning rate "
                "may be zero on purpose. Needs the kinds `update` and `param_grad`.",
            ),
            _rule(
                "bf16-update-lost",
                "warning",
                "Update lost",
                "Rounding swallows the update: nearly all values of a weight have stayed the same since the first "
                "steps, although their gradients are not zero. The update is below the resolution of the weight's "
                "type, usually bfloat16. If this began later, it is a note. Needs the kinds `update` and `param_grad`.",
                among=64,
            ),
            _rule(
                "large-update",
                "warning",
                "Too large a step",
                "The update is a large share of the weight, or far above its usual value: the learning rate is too "
                "high for this weight. About a thousandth of the weight is common.",
            ),
            _rule(
                "stalled",
                "info",
                "Stalled",
                "The update is below the resolution of a 32-bit weight, or negligible compared with its usual value: "
                "the weight no longer changes.",
            ),
            _rule(
                "spike",
                "info",
                "Spike",
                "The value in a single step is far outside the spread of the steps around it, and rose to it at once. "
                "A very large spike is a warning, unless the loss stayed below its first values.",
            ),
            _rule(
                "loss-spike",
                "warning",
                "Loss jumps",
                "A logged loss suddenly rises far above its previous 64 values, for one step or longer. It is a note "
                "if the loss stayed below its first values or changes its sign, as that of a policy gradient does. It "
                "isn't reported if the loss stayed far below its first values.",
            ),
            _rule(
                "all-zero",
                "warning",
                "Inputs are zero",
                "The gradient of a weight is exactly zero in each of its newest captured steps, although the gradient "
                "of its layer's activation isn't: the layer's input is all zeros. It is a note if this was so from the "
                "start and another layer comes before it. It isn't reported if an activation is `dead`.",
                among=64,
            ),
            _rule(
                "tensor-variance",
                "warning",
                "No variance",
                "All values of an activation are the same nonzero number in each of its newest captured steps. The "
                "rule checks the result of a module with a weight, and activations that varied at first.",
                among=64,
            ),
            _rule(
                "poor-weight-initialization",
                "warning",
                "Poor initial weights",
                "From the first step, activations grow or shrink by a factor of 8 from one layer with a weight to the "
                "next, three times in a row; or all initial values are equal in two consecutive weight matrices, so "
                "that all units learn the same. The latter needs the kind `param`, and is a note if the loss falls.",
            ),
            _rule(
                "batch-norm-drift",
                "warning",
                "Running statistics are off",
                "In each of the newest captured evaluations, the activation of a batch normalization is three times as "
                "large as in training, or a third of it, and isn't getting closer. Needs `phases` with `eval`. The "
                "first 100 steps aren't judged.",
            ),
            _rule(
                "gradient-clipped-always",
                "info",
                "Clipped in every step",
                "Clipping made the gradients smaller in nearly all of the newest captured steps, as their norms before "
                "and after it show: only the learning rate then determines the size of a step. This can be intended. "
                "Needs the kind `param_grad`. Clipping inside of the optimizer isn't seen.",
                among=64,
            ),
            _rule(
                "gradient-underflow",
                "warning",
                "Gradient underflows",
                "A gradient in float16 is so small that what isn't zero is near the smallest number of float16, in "
                "each of its newest captured steps: smaller values have become zero. A `GradScaler` prevents this; the "
                "rule takes its scale into account. It knows the type of a gradient by that of the layer's output.",
                among=64,
            ),
            _rule(
                "float8-clipped",
                "warning",
                "Clipped in float8",
                "The largest value of what a layer casts to float8 is far beyond the largest number of the format with "
                "the scale that the cast uses, in each of the newest measurements: such values are clipped. The scale "
                "follows too late, or nothing updates it. Needs TransformerEngine's delayed scaling, or scales of "
                "weights that torchao computes ahead, which are measured in every 50th captured step by default.",
            ),
            _rule(
                "state-stays-zero",
                "warning",
                "State stays zero",
                "A tensor that an optimizer keeps for a weight, such as Adam's first moment or a momentum, was zero in "
                "each of its newest measurements, although the gradient of the weight wasn't: the state is reset, or "
                "belongs to another tensor. States are measured in every 50th captured step by default.",
            ),
            _rule(
                "second-moments",
                "warning",
                "Second moments are off",
                "Adam's second moments have exploded, infinite or a million times as large as usual, so that steps are "
                "tiny; or at least half of their values are zero although the gradients aren't, because their type is "
                "too small for squares: then a step is divided by epsilon alone.",
            ),
            _rule(
                "spike-precursor",
                "info",
                "Moved before the loss",
                "Before the loss jumped, the update of a weight was at least twice as large as usual. The finding "
                "names the weight that moved first, and how many steps before. Needs the kind `update`; otherwise, it "
                "looks at gradients of weights.",
            ),
            _rule(
                "dead-channels",
                "warning",
                "Dead channels",
                "At least half of the channels are zero everywhere, in each of the newest results of a probe with "
                "`hookcore.probes.dead_channels`. It is a note if this was so from the start and the loss fell. Needs "
                "such a probe.",
            ),
            _rule(
                "rank-collapse",
                "warning",
                "Rank collapse",
                "The activations vary in at most a quarter of their initial directions, in each of the newest results "
                "of a probe with `hookcore.probes.effective_rank`. It is a note while the loss falls, because classes "
                "then gather around a few points, unless only one direction is left. Needs such a probe.",
            ),
            _rule(
                "attention-entropy-collapse",
                "warning",
                "Attention collapse",
                "Every head of a layer looks at little more than one token, but didn't at first, in each of the newest "
                "results. It is a note if the loss fell. Needs attention that is fused or computed step by step, which "
                "is measured by itself, or a probe with `hookcore.probes.attention_entropy`.",
            ),
            _rule(
                "attention-logit-growth",
                "warning",
                "Attention logits grow",
                "The largest logit of a layer's attention is above 100 and has grown, in each of the newest results. "
                "Such logits often come before a collapse of attention or a spike of the loss. It is a note if the "
                "loss fell. Needs fused attention.",
            ),
            _rule(
                "attention-first-token",
                "info",
                "Only the first token",
                "A head looks at little more than the first token, but didn't at first, in each of the newest results. "
                "Trained language models have such heads, which then do nothing. Needs attention that is fused or "
                "computed step by step.",
            ),
            _rule(
                "dead-heads",
                "warning",
                "Dead heads",
                "A head returns almost nothing compared with the other heads of its layer, in each of the newest "
                "results. It is a note if the loss fell. Needs fused attention.",
            ),
            _rule(
                "outlier-channel",
                "warning",
                "Outlier channel",
                "One channel of a block's output is at least 1,000 times as large as the median channel, in each of "
                "the newest results. Low precision then loses the other channels. It is a note if the loss fell, or if "
                "this was so from the start: trained language models have such channels. Blocks are measured by "
                "themselves, and other layers by a probe with `hookcore.probes.outliers`.",
            ),
            _rule(
                "dominant-micro-batch",
                "warning",
                "Dominant micro-batch",
                "One micro-batch of a step brought nearly all of its gradient, with a norm far above those of the "
                "others and of all steps before, or the same one does so in most measured steps. What often happens "
                "with different ones is no problem: gradients may have heavy tails. With several ranks, the "
                "micro-batches of all ranks are compared. Needs a probe with `hookcore.probes.MicroBatches`.",
            ),
            _rule(
                "dead-expert",
                "warning",
                "Dead expert",
                "A router of a mixture of experts has given an expert none of its choices, or next to none, in its "
                "newest measurements together, in which an even share would be many. With several ranks, the choices "
                "of all ranks count. Routers are measured in about every tenth step.",
            ),
            _rule(
                "router-collapse",
                "warning",
                "Router collapse",
                "A router of a mixture of experts gives nearly all of its choices to at most a quarter of its experts, "
                "in each of its newest measurements: the others hardly learn. With several ranks, the choices of all "
                "ranks count.",
            ),
            _rule(
                "uneven-expert-ranks",
                "warning",
                "Uneven ranks of experts",
                "The experts of one rank get far more choices than an even share, in each of the newest measurements: "
                "the other ranks wait for it. Needs experts that are spread over ranks, and the run of all ranks. "
                "Which rank has which is known of Megatron's layers, and of weights on a mesh with an axis `ep`.",
            ),
            _rule(
                "never-used",
                "info",
                "Never used",
                "Modules in an optimizer never ran, ran without any effect on the loss, or have parameters that never "
                "got a gradient. It is a warning if others in the same list of modules are trained, as with experts of "
                "which some are never selected. The optimizer's traces cover all steps, captured or not. The trainer "
                "checks this at a few steps, from step 96 on, and reports what it finds twice.",
                first_report=192,
            ),
            _rule(
                "stalled-training",
                "warning",
                "Training waits",
                "No step has ended for 5 minutes, and for 4 times as long as the run's longest step, while the "
                "training waits at the same line of its loop. The trainer checks this. Evaluations, checkpoints, "
                "compilation, a pause, and code after the loop don't count, however long they take.",
            ),
            _rule(
                "slow-data-loading",
                "warning",
                "Waits for data",
                "In the newest measured steps, half of the time is spent waiting for a DataLoader. Steps are measured "
                "now and then. Very short waits aren't reported.",
            ),
            _rule(
                "long-evaluation",
                "warning",
                "Evaluates too long",
                "Evaluations take at least half of the time of the training: a model that otherwise trains is in "
                "evaluation mode. This is sampled every two seconds. Short runs aren't judged.",
            ),
            _rule(
                "idle-gpu",
                "info",
                "GPU waits",
                "The driver reports that a GPU of this training has been busy for less than a third of the time in the "
                "newest samples, two minutes of them. Needs the GPU's sensors.",
            ),
            _rule(
                "late-rank",
                "warning",
                "Rank is late",
                "In most of the newest steps, the same rank is the last one to finish its gradients, noticeably later "
                "than the first one, so that all others wait for it. Only the run of all ranks has this rule.",
            ),
            _rule(
                "desync",
                "error",
                "Ranks differ",
                "Ranks of a distributed training that should have the same parameters or reduced gradients have "
                "different ones. In every captured step, counts, minimum, and maximum must be equal; mean, standard "
                "deviation, root mean square, and norm may differ by a millionth. A change of single values within the "
                "range can therefore go unnoticed. Only the run of all ranks has this rule.",
            ),
        )
    )
)


_NONFINITE_LOSS: Final = replace(
    RULES["loss"],
    causes=(
        "a NaN or an infinity in a layer, which is a problem of its own",
        "a division by zero, a logarithm of zero, or an overflow in the computation of the loss itself",
        "a NaN or an infinity in the targets",
    ),
    tries=(
        "begin with the layer that had NaN or infinity first, from which the loss follows",
        "if all layers are finite, look at the computation of the loss: add a small epsilon to logarithms and divisors",
        "look at the targets of that step: NaN, infinities, or no sample that counts",
    ),
)


def rule_about(name: str, value: float) -> Rule | None:
    """Return a built-in rule with advice about a value that it found: a loss can be NaN, or grow."""
    return _NONFINITE_LOSS if name == "loss" and not math.isfinite(value) else RULES.get(name)  # type: ignore[call-overload]


def limits_of(store: Store, rule: RuleName) -> Mapping[str, float]:
    """Return the thresholds of a rule for the run of a store: those that were chosen, else the defaults."""
    own, limits = store.rules.get(rule), RULES[rule].limits
    return {**limits, **own} if isinstance(own, Mapping) else limits
