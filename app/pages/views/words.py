"""The glossary of the pages. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hookcore.records import Kind


@dataclass(frozen=True, slots=True)
class Word:
    """The meaning of a term, and what to look for."""

    what: str
    look: str = ""


WORDS: Final[dict[str, Word]] = {
    "run": Word("One training process that hookcore watches, from hookcore.watch(model) to its end."),
    "module": Word("A torch.nn.Module of your model: a layer, a block, or the whole. Its name is its dotted path."),
    "layer": Word("A module that does computation of its own, rather than only holding other modules."),
    "kind": Word("Which tensor of a module: its activation, the gradient of its activation, its weights, and so on."),
    "tap": Word(
        "One stream of watched tensors: a module and a kind and, if needed, the place in a nested output, the "
        "number of the call within the step, and the phase (training or evaluation)."
    ),
    "step": Word("One step of the optimizer, or one call of watcher.step(). The micro-batches of a step are added up."),
    "stat": Word("A number that summarizes the values of a tensor, such as their mean."),
    "sketch": Word(
        "The histogram of a tensor, with fixed bins that are logarithmic on both sides of zero. Sketches of several "
        "steps add up exactly. Percentiles are read from them, with an error of at most 6 %."
    ),
    "frame": Word("The data captured in one step."),
    "cadence": Word(
        "How often a step is captured: every n-th. If capturing costs more than your budget, hookcore captures fewer "
        "steps and says so."
    ),
    "snapshot": Word("A whole tensor, captured on request. Of a very large tensor, only a part is captured."),
    "event": Word("An entry of the run's log: an alert, a capture that was skipped, a change of settings."),
    "coverage": Word("Which modules are captured, and why the others aren't."),
    "merged": Word(
        "Several old steps that share a point to save memory. The point has their mean, min, and max, and counts the "
        "non-finite ones, so no spike is lost."
    ),
    "worst value": Word(
        "If several layers or steps share a pixel, it shows the worst of them: NaN first, then infinities, then the "
        "largest magnitude."
    ),
    "not captured": Word(
        "A step that was skipped. Charts of layers leave it out: captured steps stand side by side, and a mark says "
        "how many were left out. By all steps, its place stays empty."
    ),
    "relative": Word(
        "Each layer's values as multiples of its own median, so that you can compare layers of different scale."
    ),
}

KIND_WORDS: Final[dict[Kind, Word]] = {
    "output": Word(
        "The activation: the output of a module.",
        "Its size should neither grow nor shrink much from layer to layer. All zeros after a ReLU mean a dead layer.",
    ),
    "output_grad": Word(
        "The gradient of the loss with respect to a module's output, before clipping, without the loss scale.",
        "It flows from the last layer to the first. If it fades on the way, the first layers don't learn.",
    ),
    "input": Word("The input of a module.", "If the input is already non-finite, the problem is upstream."),
    "input_grad": Word(
        "The gradient of the loss with respect to a module's input.", "It is what this layer passes to earlier ones."
    ),
    "param": Word(
        "A parameter: a weight or a bias.",
        "If its norm only grows, it may need weight decay. If its norm is constant, it doesn't learn.",
    ),
    "raw_grad": Word(
        "The gradient of a parameter as the last backward pass of a step left it: accumulated, unscaled, before "
        "clipping.",
        "Measured with the weight gradient, if something changes that after the backward pass.",
    ),
    "param_grad": Word(
        "The gradient of a parameter as the optimizer uses it: accumulated, unscaled, after clipping.",
        "NaN here reaches the weights with the next step.",
    ),
    "update": Word(
        "How much a step changed a parameter.",
        "Its size relative to the parameter (ratio) is the effective learning rate of this layer.",
    ),
    "exp_avg": Word(
        "Adam's first moment: the moving average of a parameter's gradients.",
        "All zeros while the gradient isn't: the optimizer's state is lost, or not updated.",
    ),
    "exp_avg_sq": Word(
        "Adam's second moment: the moving average of the squares of a parameter's gradients.",
        "The step is divided by its root, so where it is zero, a step is as large as the optimizer's epsilon allows.",
    ),
    "state": Word(
        "Another tensor that an optimizer keeps for a parameter, such as a momentum: its name follows the parameter's.",
    ),
    "probe": Word(
        "A number that your function computes from a tensor, every few steps: watcher.probe(name, function).",
        "Its mean is the number, or the mean of the numbers, that the function returns.",
    ),
}

STAT_WORDS: Final[dict[str, Word]] = {
    "count": Word("How many values the tensor has, over all calls and micro-batches of the step."),
    "nan": Word(
        "How many of them are NaN (not a number).",
        "One is enough to spoil every later layer. Find out where and when the first one appeared.",
    ),
    "inf": Word(
        "How many are infinite, of either sign.",
        "In float16, every value above 65,504 becomes infinite. Often, this happens one step before the NaN.",
    ),
    "zero": Word("How many are exactly zero."),
    "mean": Word("The mean of the finite values.", "Far from zero compared with std: the layer is biased."),
    "std": Word("The standard deviation of the finite values.", "Near 0: the output doesn't depend on the input."),
    "min": Word("The smallest finite value."),
    "max": Word("The largest finite value.", "Far above rms: a few values dominate the layer."),
    "rms": Word(
        "The root mean square: the typical magnitude of a value, independent of the size of the tensor.",
        "Use it to compare layers. A steady rise over the steps is the beginning of an explosion.",
    ),
    "norm": Word(
        "The root of the sum of squares: the length of the tensor as a vector.",
        "Gradient clipping uses it. It grows with the number of values, so compare a layer only with itself.",
    ),
    "parts": Word("How many tensors were added up in this step: the calls in all micro-batches."),
    "sketched": Word("How many values went into the histogram; fewer than count if the tensor was subsampled."),
    "ratio": Word(
        "The norm of the update divided by the norm of the parameter. Of a weight gradient: its norm after clipping, "
        "divided by its norm before clipping.",
        "About 1e-3 of the parameter is common. Above 1e-1 the step is too large; below 1e-6 the parameter hardly "
        "learns.",
    ),
    "zero_fraction": Word(
        "The share of values that are exactly zero.",
        "Half is typical after a ReLU. Near 100 %, the layer is dead; if the share keeps rising, it is dying.",
    ),
    "nonfinite": Word("NaN and infinities together.", "Investigate anything other than 0."),
}

BEGIN: Final = (
    ("Watch a model", "import hookcore\nwatcher = hookcore.watch(model)"),
    ("Log your own values", "watcher.log(loss=loss.item(), lr=lr)"),
    ("Send to another machine", "HOOKCORE_URL=http://box:8642 HOOKCORE_TOKEN=... python train.py"),
    ("Watch some layers, more kinds", 'hookcore.watch(model, include="blocks.*", kinds=["output", "update"])'),
)

NOTHING: Final = (
    (
        "No steps",
        "No optimizer with a watched parameter has taken a step yet.",
    ),
    (
        "Activations but no gradients",
        "The model runs under no_grad, or none of its tensors requires a gradient.",
    ),
    ("A layer is missing", "The Capture page lists every module that is not captured, with the reason."),
    (
        "Fewer captured steps than training steps",
        "The budget allows only every n-th step. The Capture page shows the number and the cost.",
    ),
    (
        "A run is lost",
        "Its trainer stopped answering: it was killed, or its connection is down. If it reconnects, the run continues.",
    ),
)

# The keys as the pages add them; tests/browser compares this list with the pages' own.
PATTERN_WORDS: Final = {
    "attn": "a part of the path, ignoring case",
    "layers.*.attn": "a glob for the whole path; * also matches dots, ? is one character",
    "re:.*(q|k)": "a regular expression for the whole path",
    "type:Linear, type:*Norm*": "modules of a class, including subclasses",
    "is:leaf, is:root": "modules without child modules; the model itself",
    "is:nan, is:dead": "modules with non-finite values in any step; modules with a dead finding",
    "is:trainable, is:frozen": "modules by their parameters",
    "is:captured, is:uncaptured": "modules with or without captured tensors",
    "depth:2, depth:<3": "modules by the number of modules above them",
    "!type:Dropout": "all other modules",
    "attn type:Linear": "modules that match every term",
}

KEYS: Final = (
    (
        "Everywhere",
        (
            ("/", "find"),
            ("Ctrl+K", "find an action, a page, a layer, or a run"),
            ("t", "theme: system, light, dark"),
            ("y", "take the tour of five steps"),
            ("?", "keyboard shortcuts"),
            ("Esc", "clear the selection or the find box"),
        ),
    ),
    (
        "On the pages of a run",
        (
            ("c", "copy a link to this view"),
            ("Space", "pause, or follow the newest step"),
            ("\u2190 \u2192", "one captured step back or forward"),
            ("Shift+\u2190 \u2192", "ten captured steps back or forward"),
            ("[ ]", "more or fewer steps (zoom out or in)"),
            ("#", "type the number of a step"),
            ("n p", "next and previous problem or note"),
            ("m", "annotate this step"),
            ("w", "go to the timeline; Escape leaves it"),
        ),
    ),
    (
        "In charts, trees, and lists",
        (
            ("\u2190 \u2192 \u2191 \u2193", "move the cursor"),
            ("Enter", "open the item at the cursor"),
            ("+ -", "zoom: the values of a line chart, the steps of a heatmap"),
            ("j k", "next and previous layer"),
            ("l", "logarithmic scale"),
            ("s", "smoothing"),
            ("f", "fit all rows, or readable rows"),
            ("n p", "next and previous problem, on the page of one"),
            ("e", "export"),
        ),
    ),
)


SEARCHED: Final = {  # what people look for when they mean a page of a run, besides its title
    "overview": "verdict overview",
    "events": "alerts findings incidents events errors warnings crash notes",
    "model": "architecture structure graph diagram FLOPs",
    "layer": "weights activations modules experts routers channels distribution tree",
    "tensors": "attention maps heads tokens snapshots feature maps values",
    "flow": "vanishing exploding gradients activations updates weights heatmap",
    "histograms": "distributions",
    "differences": "differences drift",
    "precision": "quantization bf16 fp16 fp8 float16 mixed",
    "metrics": "loss learning rate lr accuracy logged values curves",
    "board": "board favorites",
    "media": "images texts tables figures",
    "system": "speed throughput cost overhead GPU CPU memory data loading",
    "ranks": "distributed DDP FSDP processes nodes slow late",
    "capture": "budget every include exclude kinds modules",
    "rules": "thresholds limits alerts warnings mute",
    "hooks": "handles",
}
