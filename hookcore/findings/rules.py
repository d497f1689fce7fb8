"""The table of rules: what each finds, its meaning, and its thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hookcore.findings.advice import ADVICE
from hookcore.findings.rule import Rule, RuleName
from hookcore.findings.thresholds import defaults_of
from hookcore.records import Severity
from hookcore.store import Store


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
                "A tensor held a NaN or an infinity. The first one is named, by step and then by the order in which "
                "the model computes, and the modules that followed are counted. The step stays exact for the whole "
                "run. An episode that is over is a warning; if it is long past or a scaler skipped it, a note.",
            ),
            _rule(
                "loss",
                "error",
                "Loss problem",
                "The loss is NaN or infinite, or far above its lowest value and still near its peak: the training "
                'diverged. Only scalars with "loss" in their name count, and only positive ones can diverge.',
            ),
            _rule(
                "exploding",
                "warning",
                "Exploding",
                "The root mean square is far above what is usual for this very tensor, and stays there, while the loss "
                "gets worse; or it is above 10,000, or 10,000 times what it was. Growth under a falling loss is "
                "learning. If no loss is logged, growth alone is a note. Also found: values that grow with depth.",
            ),
            _rule(
                "vanishing",
                "warning",
                "Vanishing",
                "A gradient is far below what is usual for it; or it is tiny compared with the same gradients of the "
                "other layers and shrinks. If all of them fell alike, as at the end of a training, it is a note. Also "
                "found, from the first steps on: gradients or activations that fade by 5 decades from layer to layer, "
                "and gradients that fall by as much at one layer.",
            ),
            _rule(
                "no-gradient",
                "error",
                "No gradient",
                "At least half of the layers got a gradient of exactly zero in each of their newest captured steps: "
                "these layers no longer learn.",
                among=32,
            ),
            _rule(
                "dead",
                "warning",
                "Dead",
                "The activation is zero in each of the newest captured steps of this layer, as of a ReLU that no input "
                "reaches any more.",
                among=64,
            ),
            _rule(
                "saturated-activation",
                "warning",
                "Saturated",
                "A module of class Sigmoid or Tanh is so close to its bounds that less than a fiftieth of the gradient "
                "passes, in each of its newest captured steps. It is a note if it became so while the loss fell, as "
                "the last sigmoid of a classifier does. Activations that are called as functions are not known.",
                among=64,
            ),
            _rule(
                "not-in-optimizer",
                "warning",
                "Not in an optimizer",
                "Parameters get gradients, but no optimizer that steps has them, although it has others of the model "
                "that come before them. If only the first layers are left out, as in fine-tuning of a head, it is an "
                "event. The trainer compares them at the steps 24, 48, 96, 192, and then every 128 steps, "
                "and reports what it sees twice.",
                first_told=48,
            ),
            _rule(
                "frozen-by-mistake",
                "warning",
                "No gradient arrives",
                "Parameters are in an optimizer and require gradients, their modules run, and no gradient arrives, or "
                "none any more, while layers after them get theirs: the graph is cut after the named layer. An unused "
                "branch isn't reported. Compared by the trainer, as above.",
                first_told=48,
            ),
            _rule(
                "duplicate-in-optimizers",
                "warning",
                "In two optimizers",
                "More than one optimizer that steps has the same parameter, so it is changed twice in each step. "
                "Compared by the trainer, as above.",
                first_told=48,
            ),
            _rule(
                "overfit",
                "warning",
                "Overfitting",
                "The loss of the validation has stayed far above its lowest value, while that of the training still "
                'falls. A loss whose name contains "val", "valid", "eval", "test", or "dev" is of the validation.',
            ),
            _rule(
                "loss-not-decreasing",
                "info",
                "Loss doesn't fall",
                "The loss of the training has never been lower than in the first steps. Some losses are not meant to "
                "fall, such as those of a GAN or of reinforcement learning, so this is a note.",
            ),
            _rule(
                "unchanged-tensor",
                "warning",
                "Unchanged",
                "No value of a weight changes from the first steps on, although its gradient is not zero, and other "
                "weights change. If none changes, or if it once did, it is a note: the learning rate may be zero on "
                "purpose. Needs the kinds `update` and `param_grad`.",
            ),
            _rule(
                "bf16-update-lost",
                "warning",
                "Update lost",
                "Rounding swallows the update: nearly all values of a weight stay as they were, from the first steps "
                "on, although their gradients are not zero. The update is below the resolution of the weight's type, "
                "usually bfloat16. If it came later, it is a note. Needs the kinds `update` and `param_grad`.",
                among=64,
            ),
            _rule(
                "large-update",
                "warning",
                "Too large a step",
                "The update is a large share of the weight, or far above what is usual for it: the learning rate is "
                "too high here. About a thousandth is common.",
            ),
            _rule(
                "stalled",
                "info",
                "Stalled",
                "The update is below the resolution of a 32-bit weight, or negligible compared with what is usual: the "
                "weight no longer changes.",
            ),
            _rule(
                "spike",
                "info",
                "Spike",
                "A single step far beyond the spread of the steps around it. A very large one is a warning, unless the "
                "loss stayed below what it was at first.",
            ),
            _rule(
                "loss-spike",
                "warning",
                "Loss jumps",
                "A logged loss is suddenly far above all of its 64 values before, for a step or for longer. It is a "
                "note if the loss stayed below what it was at first, and nothing is said if it stayed far below.",
            ),
            _rule(
                "all-zero",
                "warning",
                "Inputs are zero",
                "The gradient of a weight is exactly zero in each of its newest captured steps, although that of its "
                "layer's activation isn't: everything that reaches the layer is zero. It is a note if another layer is "
                "before it and it was so from the start, and nothing is said if an activation is `dead`.",
                among=64,
            ),
            _rule(
                "tensor-variance",
                "warning",
                "No variance",
                "All values of an activation are the same number, and not zero, in each of its newest captured steps. "
                "Only modules with a weight are judged, and those whose activation varied at first.",
                among=64,
            ),
            _rule(
                "poor-weight-initialization",
                "warning",
                "Poor initial weights",
                "From the first step on, activations grow or shrink by a factor of 8 from one layer with a weight to "
                "the next, three times in a row; or two weight matrices in a row begin with equal values, so that all "
                "units learn the same. The second needs the kind `param`, and is a note if the loss falls.",
            ),
            _rule(
                "batch-norm-drift",
                "warning",
                "Running statistics are off",
                "In evaluation, the activation of a batch normalization is three times as large as in training, or a "
                "third of it, in each of the newest captured evaluations, and doesn't come closer. Unknown unless "
                "`phases` includes `eval`, and in the first 100 steps.",
            ),
            _rule(
                "gradient-clipped-always",
                "info",
                "Clipped in every step",
                "The norm of all gradients together is the same number in nearly all of the newest captured steps: "
                "clipping by norm scales every step, so the learning rate alone decides how far it goes. Some do that "
                "on purpose. Needs the gradients of all parameters that are clipped together.",
                among=64,
            ),
            _rule(
                "dead-channels",
                "warning",
                "Dead channels",
                "At least half of the channels are zero everywhere, in each of the newest results of a probe with "
                "`hookcore.probes.dead_channels`. It is a note if it was so from the start and the loss fell. Unknown "
                "without such a probe.",
            ),
            _rule(
                "rank-collapse",
                "warning",
                "Rank collapse",
                "The activations vary in a quarter of the directions in which they varied at first, or fewer, in each "
                "of the newest results of a probe with `hookcore.probes.effective_rank`. It is a note while the loss "
                "falls, as classes gather around few points, unless one direction is left. Unknown without such a "
                "probe.",
            ),
            _rule(
                "attention-entropy-collapse",
                "warning",
                "Attention collapse",
                "Every head of a layer looks at almost one token only, and didn't at first, in each of the newest "
                "results of a probe with `hookcore.probes.attention_entropy`. It is a note if the loss fell. Unknown "
                "without such a probe.",
            ),
            _rule(
                "stalled-training",
                "warning",
                "Training waits",
                "No step has ended for 5 minutes, and for 4 times the longest time that the run ever needed for one, "
                "while the training waits at the same line of its loop. The trainer notices it. Evaluations, "
                "checkpoints, compilation, a pause, and code after the loop don't count, however long they take.",
            ),
            _rule(
                "desync",
                "error",
                "Ranks differ",
                "Ranks of a distributed training that should have the same parameters, or the same reduced gradients, "
                "have different ones. Compared in every captured step are counts, minimum, and maximum, which must be "
                "equal, and mean, deviation, root mean square, and norm, which may differ by a millionth. So a change "
                "of single values inside the range can go unseen. Only the run of all ranks has it.",
            ),
        )
    )
)


def limits_of(store: Store, rule: RuleName) -> Mapping[str, float]:
    """Return the thresholds of a rule for the run of a store: those that were chosen, else the defaults."""
    own, limits = store.rules.get(rule), RULES[rule].limits
    return {**limits, **own} if isinstance(own, Mapping) else limits
