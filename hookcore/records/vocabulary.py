"""Words and colors with one meaning everywhere: kinds of taps, hookcore's own scalars, the loss, and NaN.

Names come from user code and can be any Python string. Records hold them as `text_of` writes them, so that wire,
archive, and JSON never get a string that can't be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

OWN: Final = "hookcore/"  # prefix of the scalars that hookcore adds
TIME: Final = "hookcore/time_s"  # the clock at the end of the step
ELAPSED: Final = "hookcore/elapsed_s"  # from the end of the previous step to the end of this one
REDUCTION_WAIT: Final = "hookcore/reduction_wait_s"  # from the last bucket of gradients to the end of all reductions
GRADIENT_WAIT: Final = "hookcore/gradient_wait_s"  # from the last local gradient to the optimizer's step
MICRO_BATCHES: Final = "hookcore/micro_batches"
GRAD_SCALE: Final = "hookcore/grad_scale"
GRADIENT_NORM: Final = "hookcore/gradient_norm"  # as the optimizer uses them: after clipping
RAW_NORM: Final = "hookcore/gradient_norm_before"  # before clipping
CLIP_FACTOR: Final = "hookcore/clip_factor"  # the first, divided by the second
CLIPPED_SHARE: Final = "hookcore/clipped_share"  # of the captured steps so far, in which that was below 1
NONFINITE_MODULES: Final = "hookcore/nonfinite_modules"
ZERO_MODULES: Final = "hookcore/zero_modules"
SKIPPED: Final = "hookcore/skipped"  # 1 at a step that a GradScaler skipped
COST: Final = "hookcore/cost"  # of a captured step, as a share of an uncaptured one
EFFECTIVE_COST: Final = "hookcore/effective_cost"  # of all steps
FOLLOWING_COST: Final = "hookcore/following_cost"  # of a step that isn't captured
STRIDE: Final = "hookcore/every"  # every n-th step is captured
HISTOGRAM_STRIDE: Final = "hookcore/histograms_every"  # in every n-th step, histograms are counted
UNCAPTURED_STEPS: Final = "hookcore/uncaptured_steps"  # left out by the cadence so far

SYSTEM: Final = "hookcore/system/"  # prefix of the values sampled from the machine every two seconds
CPU_PROCESS: Final = SYSTEM + "cpu/process"  # cores that the process keeps busy
CPU_MACHINE: Final = SYSTEM + "cpu/machine"  # and that all processes do
MEMORY_PROCESS: Final = SYSTEM + "memory/process"  # bytes
MEMORY_MACHINE: Final = SYSTEM + "memory/machine"
DISK_READ: Final = SYSTEM + "disk/read"  # bytes per second, of the machine
DISK_WRITTEN: Final = SYSTEM + "disk/written"
NET_RECEIVED: Final = SYSTEM + "network/received"  # bytes per second, of the machine, without the loopback
NET_SENT: Final = SYSTEM + "network/sent"
STEPS_RATE: Final = SYSTEM + "rate/steps"  # per second
SAMPLES_RATE: Final = SYSTEM + "rate/samples"
TOKENS_RATE: Final = SYSTEM + "rate/tokens"  # if the model is given integers, a row for each sample
THROUGHPUT: Final = (SAMPLES_RATE, TOKENS_RATE)  # rates that add up over the ranks of a training
TIME_LOADING: Final = SYSTEM + "time/loading"  # seconds of a captured step: in a DataLoader, if the run has one
TIME_BEFORE: Final = SYSTEM + "time/before"  # until the model is called first
TIME_FORWARD: Final = SYSTEM + "time/forward"
TIME_BACKWARD: Final = SYSTEM + "time/backward"
TIME_OPTIMIZER: Final = SYSTEM + "time/optimizer"
TIME_OTHER: Final = SYSTEM + "time/other"
TIME_HOOKCORE: Final = SYSTEM + "time/hookcore"
EVALUATED: Final = SYSTEM + "evaluated"  # seconds of the run so far in which its model was in evaluation mode
MACHINE_LABEL: Final = "machine"  # the label that says how large it is; with " gpu0", which GPU that is
SENSORS_LABEL: Final = "machine sensors"  # the label that says why those of the GPUs aren't read

FOUND_LOSS: Final = "backward/loss"  # what `backward()` was called on; with what is stepped, of several optimizers
LOGGED_LOSS: Final = 1  # the rank of losses that are the training's without doubt

FORMAT: Final = "format"  # the fact that says which files an imported run was made of
TRAINED: Final = "steps.trained"  # the fact that says how many steps a run had, captured or not

IMAGE_TYPE: Final = "image/png"  # media types of logged images, texts, tables, and figures
# All that every browser shows. Not SVG, which may contain scripts.
IMAGE_TYPES: Final = (IMAGE_TYPE, "image/jpeg", "image/gif", "image/webp", "image/bmp")
TEXT_TYPE: Final = "text/plain"
TABLE_TYPE: Final = "application/json"
FIGURE_TYPE: Final = "application/vnd.plotly.v1+json"
MAX_MEDIA_BYTES: Final = 2**20  # of one of them

CAPSULE_MISSED: Final = "capsule-missed"  # the event of a step that could not be saved
NONFINITE_STEP: Final = "nonfinite-step"  # the event of a step in which the trainer found a NaN or an infinity
DECAY_SHARE: Final = "decay_share"
STEP_NUMBERS: Final = ("effective_lr", DECAY_SHARE, "rotation")  # about the step of a weight, stored as probes
UPDATE_COSINE: Final = "update_cosine"  # of the update of a weight to the one before, likewise
EXPERT_LOAD: Final = "expert_load"  # the share of each expert in the choices of a router, stored as a probe
EXPERT_OWNED: Final = "expert_owned"  # the numbers of the experts that this rank has, if others have the rest
ROUTER_ENTROPY: Final = "router_entropy"  # of a token's probabilities, on average; 1 if all experts are as likely
EXPERT_DROPPED: Final = "expert_dropped"  # the share of the choices beyond an expert's capacity
RESIDUAL: Final = "residual"  # the share of a branch in the residual stream, and the stream before and after it
FLOAT8: Final = "float8"  # scale, amax, and reach of what a layer casts to float8
MICRO_NORM: Final = "micro_norm"  # of what each micro-batch adds to a model's gradient, a part of a probe's result
MICRO_COSINE: Final = "micro_cosine"  # of that to the gradient of the step
# Names that no probe of a user has:
OWN_NUMBERS: Final = (
    *(*STEP_NUMBERS, UPDATE_COSINE, EXPERT_LOAD, ROUTER_ENTROPY, EXPERT_DROPPED, RESIDUAL, FLOAT8),
    *(EXPERT_OWNED, MICRO_NORM, MICRO_COSINE),
)
# Numbers of each head of a call of attention, stored as probes, and the place of its maps among a module's outputs.
ATTENTION_NUMBERS: Final = ("largest_logit", "entropy", "log_sum_exp", "first_token", "distance", "output")
ATTENTION: Final = "hookcore.probes.attention"  # the function that computes them
ATTENTION_PROBE: Final = "attention"  # the name under which they are computed unless a script chooses one
ATTENTION_MAP: Final = "recomputed attention"
COORDCHECK: Final = "coordcheck"  # the tag of the runs of that command
EXPONENTS: Final = "exponents"  # the figure that the last of them logs
SIMILARITY: Final = "similarity of samples"  # of a fixed batch, in what a module returns; with the hash of the batch
# Numbers of what stands out in an activation.
OUTLIER_NUMBERS: Final = ("ratio", "channel", "kurtosis", "largest", "largest_channel", "largest_token")
OUTLIERS: Final = "hookcore.probes.outliers"
OUTLIERS_PROBE: Final = "outliers"
# Numbers of hookcore's functions, whose growth or spikes say nothing by themselves.
_OTHERS: Final = ("cross_entropy", "stable_rank", "singular", MICRO_NORM, MICRO_COSINE)
NUMBERS_APART: Final = frozenset((*ATTENTION_NUMBERS, *OUTLIER_NUMBERS, *_OTHERS))
PROBE_LABEL: Final = "probe "  # with the name of a probe of the script: the label that says which function it is

TRACEBACK: Final = "traceback"  # in what an event of an error is about
# Events of the trainer, from which rules of these names make findings:
OUTSIDE: Final = "not-in-optimizer"
FROZEN: Final = "frozen-by-mistake"
DUPLICATE: Final = "duplicate-in-optimizers"
STALLED: Final = "stalled-training"
NEVER_USED: Final = "never-used"
OUTSIDE_BEFORE: Final = "gradients-unused"  # a note: only what comes before the trained parameters
ENDED: Final[dict[str, str]] = {
    name: f"{name}-ended" for name in (OUTSIDE, FROZEN, DUPLICATE, STALLED, NEVER_USED, OUTSIDE_BEFORE)
}

KIND_TITLES: Final[dict[str, str]] = {  # of several tensors
    "output": "activations",
    "output_grad": "gradients",
    "input": "inputs",
    "input_grad": "gradients of inputs",
    "param": "weights",
    "raw_grad": "gradients of weights before clipping",
    "param_grad": "gradients of weights",
    "update": "updates",
    "exp_avg": "first moments",
    "exp_avg_sq": "second moments",
    "state": "optimizer states",
    "probe": "probes",
}
KIND_WORDS: Final[dict[str, str]] = {  # the same terms, of one tensor
    "output": "activation",
    "output_grad": "activation gradient",
    "input": "input",
    "input_grad": "input gradient",
    "param": "weight",
    "raw_grad": "weight gradient before clipping",
    "param_grad": "weight gradient",
    "update": "update",
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "state": "optimizer state",
    "probe": "probe",
}

NAN_COLOR: Final = "#c4009a"
INFINITE_COLOR: Final = "#d9480f"
EMPTY_COLOR: Final = "#c6ccd3"


def rgb_of(color: str) -> tuple[int, int, int]:
    """Return red, green, and blue of a color such as "#c4009a"."""
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


DESYNC: Final = "desync"  # the rule about values that ranks should have in common
LATE_RANK: Final = "late-rank"  # the rule about ranks that keep the others waiting
# Events about rules of the user: what one found or no longer finds, and a label with its counters.
OWN_RULE: Final = "own-"
OWN_PROBLEM: Final = "problem"  # in what such an event is about: the problem's severity, or None once it is over
OWN_RULE_LABEL: Final = "own rule "
OWN_RULE_EVENTS: Final = frozenset({"own-rule-failed", "own-rule-off", "own-rule-slow"})  # about the rule itself


# Errors and warnings are problems. What is worth knowing and no problem is a note.
STATE_WORDS: Final[dict[str, str]] = {"live": "still running", "waiting": "waiting for its trainer"}  # others are words
SEVERITY_WORDS: Final[dict[str, str]] = {"error": "error", "warning": "warning", "info": "note"}


def found_words(problems: int, notes: int) -> str:
    """Write how many problems and notes were found: "No problems, but 3 notes"."""
    if not problems:
        return f"No problems, but {counted(notes, 'note')}" if notes else "No problems"
    return counted(problems, "problem") + (f" and {counted(notes, 'note')}" if notes else "")


def counted(many: int, noun: str) -> str:
    """Write a count with its noun, which is given in the singular: 1 layer, 2,000 layers."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def is_media(dtype: str) -> bool:
    """Return whether a snapshot was logged as an image, text, table, or figure, by its dtype: a media type."""
    return "/" in dtype


def functions_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the function of each probe by its name: those of the script, and hookcore's own of rare steps."""
    asked = {name.removeprefix(PROBE_LABEL): text for name, text in labels.items() if name.startswith(PROBE_LABEL)}
    return {ATTENTION_PROBE: ATTENTION, OUTLIERS_PROBE: OUTLIERS} | asked


def is_per_frame(rule: str) -> bool:
    """Return whether each frame brings a rule's findings as events, so that no look at many steps is needed."""
    return rule in (DESYNC, LATE_RANK) or rule.startswith(OWN_RULE)


def is_bias(name: str) -> bool:
    """Return whether a parameter is a bias, by its name."""
    return name.rpartition(".")[2].startswith("bias")


def is_loss(name: str) -> bool:
    """Return whether a scalar is a loss: the last part of its name contains "loss"."""
    return "loss" in name.rpartition("/")[2].casefold() and not name.startswith(OWN)


def is_found_loss(name: str) -> bool:
    """Return whether a scalar is what `backward()` was called on, of whichever optimizer."""
    return name.startswith(FOUND_LOSS)


def titled(name: str) -> str:
    """Return what people read in place of a scalar's name: `loss` for what `backward()` was called on."""
    return name.removeprefix("backward/") if is_found_loss(name) else name


def losses_among(names: Iterable[str]) -> list[str]:
    """Return the scalars that one chart of the training loss shows: the likeliest, and those of further optimizers."""
    every = list(names)
    best = loss_among(every)
    if best is None or not is_found_loss(best):
        return [] if best is None else [best]
    return sorted(filter(is_found_loss, every), key=loss_rank)


def is_rate(name: str) -> bool:
    """Return whether a scalar is a learning rate, by the last part of its name."""
    return name.rpartition("/")[2].casefold().replace("-", "_") in ("lr", "learning_rate")


def loss_among(names: Iterable[str]) -> str | None:
    """Return the scalar that is most likely the training loss; None if none is a loss."""
    return min(filter(is_loss, names), key=loss_rank, default=None)


def loss_rank(name: str) -> int:
    """Return a key that sorts scalars by how likely they are the training loss."""
    if not is_loss(name):
        return 5
    if is_found_loss(name):
        return 2 if name == FOUND_LOSS else 3  # that of the first optimizer, whichever came first
    return 0 if name == "loss" else LOGGED_LOSS if name.rpartition("/")[2].casefold() in ("loss", "train_loss") else 4


_ESCAPED: Final = re.compile(r"\\ud[89a-f][0-9a-f]{2}")


def text_of(text: str) -> str:
    """Return a text as a plain `str` that can be encoded: invalid Unicode is escaped as `\\udcff`."""
    if type(text) is not str:
        text = str.__str__(text)  # its letters, whatever a subclass returns
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escaped_in(texts: Iterable[str]) -> str | None:
    """Return the first text in which `text_of` escaped something."""
    return next((text for text in texts if "\\ud" in text and _ESCAPED.search(text)), None)


def write_plainly(record: Any, *names: str) -> None:
    """Rewrite these texts of a frozen record, if they need it."""
    for name in names:
        text = getattr(record, name)
        if type(text) is not str or not text.isascii():
            object.__setattr__(record, name, plain(text))


def plain(value: Any) -> Any:
    """Return a value with every text in it, however deep, written as `text_of` does."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    return {plain(name): plain(each) for name, each in value.items()} if isinstance(value, dict) else value
