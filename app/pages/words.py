"""What the words of the pages mean, in the reader's language. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hookcore.records import Kind


@dataclass(frozen=True, slots=True)
class Word:
    """What something is, and what to look for in it."""

    what: str
    look: str = ""


WORDS: Final[dict[str, Word]] = {
    "run": Word("One training process that hookcore watches: from hookcore.watch(model) to its end."),
    "module": Word(
        "A part of your model, as PyTorch has it: a layer, a block, or the whole. Its name is its dotted path."
    ),
    "layer": Word("A module, on these pages mostly one that computes something itself."),
    "kind": Word("Which tensor of a module is meant: what it gives, the gradient of that, its parameters, and so on."),
    "tap": Word(
        "One stream of tensors that is watched: a module and a kind, and where they are needed the place in a nested "
        "output, the number of the call within the step, and whether it is training or evaluation."
    ),
    "step": Word(
        "One step of the optimizer, or one watcher.step(). What several micro-batches of a step hold is added up."
    ),
    "stat": Word("A number that says something of all values of a tensor, such as their mean."),
    "sketch": Word(
        "The histogram of a tensor, with bins that are fixed and logarithmic on both sides of zero. Sketches of "
        "several steps add up exactly; the percentiles are read from them and are right within 7 %."
    ),
    "frame": Word("All that was captured in one step."),
    "cadence": Word(
        "Which steps are captured: every n-th. Where watching would cost more than your budget, hookcore takes fewer "
        "by itself and says so."
    ),
    "snapshot": Word("A whole tensor that was kept because somebody asked for it, or a part of one that is too large."),
    "event": Word("Something worth a line: an alert, a capture that was left out, a change of settings."),
    "coverage": Word("Which modules are seen, and of each that is not, why not."),
    "merged": Word(
        "Old steps share a point: then it stands for several steps, with their mean, their smallest and largest value, "
        "and how many of them were not finite. No spike is lost."
    ),
    "worst value": Word(
        "Where more layers or steps fall on a pixel than it can show, it shows the worst of them: what is not finite "
        "first, then the largest magnitude."
    ),
    "not sampled": Word("Nothing was captured there, which is neither zero nor NaN. It has a grey of its own."),
    "relative": Word(
        "Each layer compared with its own usual size, so that late layers do not look alarming by nature."
    ),
}

KIND_WORDS: Final[dict[Kind, Word]] = {
    "output": Word(
        "The activation: what a module gives.",
        "Its size should neither grow nor shrink much from layer to layer. All zeros behind a ReLU: a dead layer.",
    ),
    "output_grad": Word(
        "The gradient of the loss by a module's output, before any clipping, without the loss scale.",
        "It flows from the last layer to the first. Where it fades on the way, the first layers do not learn.",
    ),
    "input": Word("What a module is given.", "Is the input already not finite, then the fault lies before this layer."),
    "input_grad": Word(
        "The gradient of the loss by a module's input.", "What this layer hands on to the ones before it."
    ),
    "param": Word(
        "A parameter: a weight or a bias.",
        "A norm that only grows asks for weight decay; one that stands still does not learn.",
    ),
    "param_grad": Word(
        "The gradient of a parameter as the optimizer uses it: added up, unscaled, clipped.",
        "NaN here reaches the weights with the next step.",
    ),
    "update": Word(
        "By how much a step changed a parameter.",
        "Its size beside that of the parameter (ratio) is the learning rate that this layer really has.",
    ),
}

STAT_WORDS: Final[dict[str, Word]] = {
    "count": Word("How many values the tensor has, calls and micro-batches of the step together."),
    "nan": Word(
        "How many of them are NaN (not a number).",
        "One is enough to spoil everything behind it. Where and when was the first?",
    ),
    "inf": Word(
        "How many are infinite, of either sign.",
        "In float16 anything above 65,504 is. Often it comes one step before the NaN.",
    ),
    "zero": Word("How many are exactly zero."),
    "mean": Word("The mean of the finite values.", "Far from zero beside the std: the layer is biased."),
    "std": Word(
        "The standard deviation of the finite values.", "Near 0: the layer gives the same whatever it is given."
    ),
    "min": Word("The smallest finite value."),
    "max": Word("The largest finite value.", "Far above the rms: a few values rule the layer."),
    "rms": Word(
        "The root of the mean square: the typical size of a value, whatever the size of the tensor.",
        "The one to compare layers by. A steady rise over the steps is an explosion in the making.",
    ),
    "norm": Word(
        "The root of the sum of squares: the length of the tensor as a vector.",
        "What gradient clipping looks at. It grows with the number of values, so compare a layer with itself.",
    ),
    "parts": Word("How many tensors were added up in this step: calls in its micro-batches."),
    "sketched": Word("How many values went into the histogram; fewer than the count where it was sampled."),
    "ratio": Word(
        "The norm of the update by the norm of the parameter.",
        "About 1e-3 is common. Above 1e-1 the step is too large; below 1e-6 this parameter hardly learns.",
    ),
    "zero_fraction": Word(
        "The share of values that are exactly zero.",
        "Half is usual behind a ReLU. Near 100 %: dead. Rising over the steps: dying.",
    ),
    "nonfinite": Word("NaN and infinities together.", "Anything but 0 wants a look."),
}

BEGIN: Final = (
    ("In the script", "import hookcore\nwatcher = hookcore.watch(model)"),
    ("Scalars of your own", "watcher.log(loss=loss.item(), lr=lr)"),
    ("To a server elsewhere", "HOOKCORE_URL=http://box:8642 HOOKCORE_TOKEN=... python train.py"),
    ("Only some layers, and more of them", 'hookcore.watch(model, include="blocks.*", kinds=["output", "update"])'),
)

NOTHING: Final = (
    (
        "No step has come",
        "No optimizer that owns a watched parameter made a step yet, or every step is still under way.",
    ),
    (
        "Activations, and no gradients",
        "The model is in eval mode under no_grad, or nothing that needs a gradient runs through it.",
    ),
    ("A layer is missing", "The Hooks page lists every module that was not seen, with the reason."),
    (
        "Fewer steps than the training made",
        "The budget takes every n-th step; Settings shows which, and what it costs.",
    ),
    (
        "A run is lost",
        "It gave no sign of life: it was killed, or its way to this server is cut. If it comes back, it goes on.",
    ),
)

# The keys as the pages add them; tests/browser compares this list with the pages' own.
KEYS: Final = (
    (
        "Everywhere",
        (
            ("/", "find"),
            ("Ctrl+K", "find"),
            ("t", "theme: system, light, dark"),
            ("?", "this list"),
            ("Esc", "clear what is pointed at, or the find box"),
        ),
    ),
    (
        "On the pages of a run",
        (
            ("c", "copy a link to this view"),
            ("Space", "pause, or follow the newest step"),
            ("\u2190 \u2192", "one step back or on"),
            ("Shift+\u2190 \u2192", "ten steps back or on"),
            ("[ ]", "more or fewer steps (zoom out or in)"),
        ),
    ),
    (
        "In charts, trees and lists",
        (
            ("\u2190 \u2192 \u2191 \u2193", "move the cursor"),
            ("Enter", "open what it is on"),
            ("j k", "next and previous layer"),
            ("l", "logarithmic scale"),
            ("s", "smoothing"),
            ("f", "all rows, or readable ones"),
            ("n p", "next and previous alert"),
            ("e", "export"),
        ),
    ),
)
