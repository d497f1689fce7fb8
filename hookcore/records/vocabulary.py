"""Words and colors with one meaning everywhere: kinds of taps, hookcore's own scalars, the loss, and NaN."""

from __future__ import annotations

from typing import Final

OWN: Final = "hookcore/"  # prefix of the scalars that hookcore adds
TIME: Final = "hookcore/time_s"  # the clock at the end of the step
ELAPSED: Final = "hookcore/elapsed_s"  # from the end of the previous step to the end of this one
MICRO_BATCHES: Final = "hookcore/micro_batches"
GRAD_SCALE: Final = "hookcore/grad_scale"
GRADIENT_NORM: Final = "hookcore/gradient_norm"
NONFINITE_MODULES: Final = "hookcore/nonfinite_modules"
ZERO_MODULES: Final = "hookcore/zero_modules"
SKIPPED: Final = "hookcore/skipped"  # 1 at a step that a GradScaler skipped
COST: Final = "hookcore/cost"  # of a captured step, as a share of an uncaptured one
EFFECTIVE_COST: Final = "hookcore/effective_cost"  # of all steps
STRIDE: Final = "hookcore/every"  # one step in so many is captured
UNCAPTURED_STEPS: Final = "hookcore/uncaptured_steps"  # left out by the cadence so far

PROBE_LABEL: Final = "probe "  # with the name of a probe: the label that says which function it is

# Events of the trainer, from which rules of these names make findings:
OUTSIDE: Final = "not-in-optimizer"
FROZEN: Final = "frozen-by-mistake"
DUPLICATE: Final = "duplicate-in-optimizers"
STALLED: Final = "stalled-training"
OUTSIDE_BEFORE: Final = "gradients-unused"  # a note: only what comes before the trained parameters
ENDED: Final[dict[str, str]] = {name: f"{name}-ended" for name in (OUTSIDE, FROZEN, DUPLICATE, STALLED, OUTSIDE_BEFORE)}

KIND_WORDS: Final[dict[str, str]] = {
    "output": "output",
    "output_grad": "output gradient",
    "input": "input",
    "input_grad": "input gradient",
    "param": "parameter",
    "param_grad": "parameter gradient",
    "update": "update",
    "probe": "probe",
}
KIND_TITLES: Final[dict[str, str]] = {
    "output": "activations",
    "output_grad": "gradients",
    "input": "inputs",
    "input_grad": "gradients of inputs",
    "param": "parameters",
    "param_grad": "gradients of parameters",
    "update": "updates",
    "probe": "probes",
}

NAN_COLOR: Final = "#c4009a"
INFINITE_COLOR: Final = "#d9480f"
EMPTY_COLOR: Final = "#c6ccd3"


def rgb_of(color: str) -> tuple[int, int, int]:
    """Return red, green, and blue of a color such as "#c4009a"."""
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


# Events about rules of the user: what one found, that it is no longer found, and a label with its counters.
OWN_RULE: Final = "own-"
OWN_OVER: Final = "-over"
OWN_RULE_LABEL: Final = "own rule "
OWN_RULE_EVENTS: Final = frozenset({"own-rule-failed", "own-rule-off", "own-rule-slow"})  # about the rule itself


def is_bias(name: str) -> bool:
    """Return whether a parameter is a bias, by its name."""
    return name.rpartition(".")[2].startswith("bias")


def is_loss(name: str) -> bool:
    """Return whether a scalar is a loss: the last part of its name contains "loss"."""
    return "loss" in name.rpartition("/")[2].casefold() and not name.startswith(OWN)


def loss_rank(name: str) -> int:
    """Return a key that sorts scalars by how likely they are the training loss."""
    if not is_loss(name):
        return 3
    return 0 if name == "loss" else 1 if name.rpartition("/")[2].casefold() in ("loss", "train_loss") else 2
