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
                "The rule also finds, from the first steps, gradients or activations that fade by 5 decades over the "
                "depth of the model, and gradients that drop by as much at one layer.",
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
                "The value in a single step is far outside the spread of the steps around it. A very large spike is a "
                "warning, unless the loss stayed below its first values.",
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
                "rule checks modules with a weight, and modules whose activation varied at first.",
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
                "The norm of all gradients together is the same number in nearly all of the newest captured steps: "
                "clipping by norm scales every step, so only the learning rate determines the size of a step. This can "
                "be intended. Needs the gradients of all parameters that are clipped together.",
                among=64,
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
                "results of a probe with `hookcore.probes.attention_entropy`. It is a note if the loss fell. Needs "
                "such a probe.",
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


def limits_of(store: Store, rule: RuleName) -> Mapping[str, float]:
    """Return the thresholds of a rule for the run of a store: those that were chosen, else the defaults."""
    own, limits = store.rules.get(rule), RULES[rule].limits
    return {**limits, **own} if isinstance(own, Mapping) else limits
