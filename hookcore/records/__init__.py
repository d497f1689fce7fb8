"""The records: taps, frames, events, snapshots, modules. Data only; no torch, no arithmetic."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hookcore.records.flow import Flow
from hookcore.records.vocabulary import EXPERT_LOAD, KIND_WORDS, is_media, write_plainly
from hookcore.records.vocabulary import escaped_in as escaped_in
from hookcore.records.vocabulary import plain as plain
from hookcore.records.vocabulary import text_of as text_of

Kind = Literal[
    "output",
    "output_grad",
    "input",
    "input_grad",
    "param",
    "raw_grad",
    "param_grad",
    "update",
    "exp_avg",
    "exp_avg_sq",
    "state",
    "probe",
]
Phase = Literal["train", "eval"]
Severity = Literal["info", "warning", "error"]
Value = bool | int | float | str | None  # of a configuration, or a fact about a run
Scope = Literal["module", "parameter", "tensor", "optimizer", "thread", "process"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PROBE: Final = "probe"  # what a function of the user computed of a tensor
STATE_KINDS: Final[frozenset[Kind]] = frozenset(("exp_avg", "exp_avg_sq", "state"))  # what optimizers keep
APART: Final = STATE_KINDS | {"raw_grad"}  # they come with other kinds, and have rules of their own
TENSOR_KINDS: Final[tuple[Kind, ...]] = tuple(kind for kind in KINDS if kind != PROBE and kind not in APART)
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")  # the worst first
UNKNOWN_OWNER: Final = -1
_STEPS_ABOUT: Final = frozenset({"step", "previous"})  # facts of events that are steps
_TEXT: Final = frozenset((str,))
ROOT: Final = "(root)"  # the path of the root module, which is empty, as readers see it
PARAMETER_KINDS: Final[frozenset[Kind]] = STATE_KINDS | {"param", "raw_grad", "param_grad", "update"}
ACTIVATION_KINDS: Final[frozenset[Kind]] = frozenset(("output", "output_grad", "input", "input_grad"))
GRADIENT_KINDS: Final[frozenset[Kind]] = frozenset({"output_grad", "input_grad", "raw_grad", "param_grad"})

# The columns of a frame's matrix. Moments, minimum, and maximum are over the finite values; `std` is the population's
# (divided by n); `parts` is the number of merged tensors (calls of several micro-batches); `sketched` is the number of
# values in the sketch (fewer than `count` if it was sampled); `ratio` of an update is |update| / |param|, and of a
# weight gradient |param_grad| / |raw_grad|, if something has changed it after the backward pass (otherwise NaN).
STATS: Final = ("count", "nan", "inf", "zero", "mean", "std", "min", "max", "rms", "norm", "parts", "sketched", "ratio")
STAT_COLUMN: Final[dict[str, int]] = {name: column for column, name in enumerate(STATS)}


def worst_first(
    severity: Severity, step: int, *, is_of_loss: bool = False, is_quiet: bool = False
) -> tuple[bool, int, int, bool]:
    """Return the key that sorts problems: what nobody has dealt with, then by severity, then by the first step.

    Of one step, a bad loss is the consequence.
    """
    return is_quiet, SEVERITIES.index(severity), step, is_of_loss


@dataclass(frozen=True, slots=True)
class Tap:
    """One observed tensor stream.

    `index` is the place in a nested output ("" for a single tensor, "0", "past.1"), or the parameter's own name. `call`
    is the number of the call in a step.
    """

    module: str
    kind: Kind
    index: str = ""
    call: int = 0
    phase: Phase = "train"

    def __post_init__(self) -> None:
        write_plainly(self, "module", "index")

    @property
    def label(self) -> str:
        """The tap in one line, such as "encoder output [past.1] call 2 (eval)"."""
        return f"{self.module or ROOT} {self.stream}"

    @property
    def tensor(self) -> str:
        """The name of the tensor in its module's record: a gradient goes by its tensor, a parameter by its own name."""
        if self.kind in PARAMETER_KINDS:
            return self.index
        return f"{self.kind.removesuffix('_grad')} {self.index}".rstrip()

    @property
    def name(self) -> str:
        """The label without the kind, such as "encoder [past.1] call 2 (eval)"."""
        return f"{self.module or ROOT}{self._rest}"

    @property
    def stream(self) -> str:
        """The label without the module, such as "output [past.1] call 2 (eval)"."""
        return f"{self.kind}{self._rest}"

    @property
    def words(self) -> str:
        """The label in the words of pages, such as "encoder activation [past.1] call 2 (eval)"."""
        return f"{self.module or ROOT} {KIND_WORDS[self.kind]}{self._rest}"

    @property
    def _rest(self) -> str:
        index = f" [{self.index}]" if self.index else ""
        call = f" call {self.call}" if self.call else ""
        return f"{index}{call}{'' if self.phase == 'train' else f' ({self.phase})'}"


def adds_up(tap: Tap) -> bool:
    """Return whether the numbers of a tap are counts, which add up over steps and ranks."""
    return tap.kind == PROBE and tap.index == EXPERT_LOAD


@dataclass(frozen=True, slots=True)
class Event:
    """An alert, a skipped capture, a change of settings."""

    step: int
    time_s: float
    name: str  # a short name such as "skipped-step", "hook-error", "frame-dropped"
    message: str
    severity: Severity = "info"
    module: str = ""
    count: int = 1
    about: dict[str, Value] = field(default_factory=dict, hash=False)  # what it is about, for programs

    def __post_init__(self) -> None:
        write_plainly(self, "name", "message", "module", "about")

    @property
    def key(self) -> str:
        """The key to acknowledge it: always the same for the same event."""
        text = "\n".join((str(self.step), repr(self.time_s), self.name, self.module, self.message))
        return f"event:{hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=9).hexdigest()}"

    def moved(self, steps: int) -> Event:
        """Return the event as one of a later step, with the steps that it is about."""
        about = {
            name: value + steps if name in _STEPS_ABOUT and isinstance(value, int) else value
            for name, value in self.about.items()
        }
        return replace(self, step=self.step + steps, about=about) if steps else self

    def fits(self, first: int | None, last: int | None, name: str | None, severity: Severity | None) -> bool:
        """Return whether it belongs to the steps from `first` to `last`, and has this name and severity."""
        in_steps = (first is None or self.step >= first) and (last is None or self.step <= last)
        return in_steps and name in (None, self.name) and severity in (None, self.severity)


@dataclass(frozen=True, slots=True)
class SketchBlock:
    """The sparse sketches of one frame: row i owns bins[start[i]:start[i + 1]] and the counts at the same places.

    Bin numbers are those of `hookcore.records.sketch`, ascending inside a row. A row may be empty.
    """

    start: NDArray[np.uint32]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint32]

    @classmethod
    def empty(cls, rows: int) -> SketchBlock:
        """Return a block in which no row has a sketch."""
        return cls(np.zeros(rows + 1, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32))


def _unwritable(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


# The arrays of all frames without rows, which many steps have: those that weren't captured.
NO_TAPS: Final[NDArray[np.uint32]] = _unwritable(np.empty(0, np.uint32))
NO_STATS: Final[NDArray[np.float64]] = _unwritable(np.empty((0, len(STATS))))
NO_SKETCHES: Final = SketchBlock(
    _unwritable(np.zeros(1, np.uint32)), _unwritable(np.empty(0, np.uint16)), _unwritable(np.empty(0, np.uint32))
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything captured in one step. A step may have several frames, whose taps differ or are merged."""

    step: int
    time_s: float
    taps: NDArray[np.uint32]  # run-wide numbers of taps; row i of `stats` and `sketches` belongs to taps[i]
    stats: NDArray[np.float64]  # [len(taps), len(STATS)]
    sketches: SketchBlock
    new_taps: tuple[Tap, ...] = ()  # announced here for the first time; numbered from the last known tap
    events: tuple[Event, ...] = ()
    scalars: dict[str, float] = field(default_factory=dict)
    micro_batches: int = 0
    grad_scale: float | None = None  # the loss scale that was divided out of the gradients; None if unknown
    labels: dict[str, str] = field(default_factory=dict)  # other facts that readers need, for example the optimizer
    elapsed_s: float = float("nan")  # from the end of the previous step to the end of this one
    flow: Flow | None = None  # which call fed which, if it was learned in this step
    # In a distributed training, the lowest rank that holds the same values as row i; the sender's own rank if no other
    # one holds them, UNKNOWN_OWNER if nobody can tell. None: all rows are the sender's own.
    owners: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if not (_TEXT.issuperset(map(type, self.scalars)) and "".join(self.scalars).isascii()):
            object.__setattr__(self, "scalars", {text_of(name): value for name, value in self.scalars.items()})
        if self.labels:
            object.__setattr__(self, "labels", {text_of(name): text_of(text) for name, text in self.labels.items()})


def is_shared(taps: NDArray[Any]) -> bool:
    """Return whether an array can be recognized by its identity: it is never written to, and holds no message."""
    return taps.base is None and not taps.flags.writeable


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the positions of each sample of a batch, and of the samples: the script's, or what its ids say."""

    tokens: tuple[tuple[str, ...], ...] = ()
    shared: bool = False  # whether there is one row of tokens, for all samples alike
    labels: tuple[str, ...] = ()
    origin: str = ""  # what says the tokens if the script didn't, such as "ids of the batch"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A raw tensor captured on request, or by itself. `dtype` is torch's name; bfloat16 is sent as float32."""

    tap: Tap
    step: int
    time_s: float
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[np.generic]
    truncated: bool = False
    number: int = -1  # the number of the command that requested it; -1 if the training script did
    names: Names | None = None  # of its batch

    @property
    def is_media(self) -> bool:
        """Whether the script logged it: `dtype` is then a media type, and the values are its bytes."""
        return is_media(self.dtype)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended early: an exception, or a signal. `step` is the step that it was in."""

    outcome: Literal["crashed", "stopped"]
    step: int
    error: str = ""  # such as "RuntimeError: out of memory"
    traceback: str = ""
    signal: str = ""  # that stopped it, such as "SIGTERM"
    module: str | None = None  # the innermost watched module whose call raised; None if there is none
    file: str = ""  # with the innermost line of the user's own code; empty if it isn't known
    line: int = 0
    code: str = ""  # of that line

    def __post_init__(self) -> None:
        write_plainly(self, "error", "traceback", "module", "file", "code")

    @property
    def where(self) -> str:
        """The place in the user's code in one word, such as "model.py:14"."""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}" if self.file else ""

    @property
    def place(self) -> str:
        """The module and the line, in words that follow a verb: " in encoder, at model.py:14"."""
        module = "" if self.module is None else f" in {self.module or ROOT}"
        return f"{module}{',' if module and self.file else ''}{f' at {self.where}' if self.file else ''}"

    @property
    def sentence(self) -> str:
        """What happened, without the exception."""
        if self.outcome == "crashed":
            return f"The training crashed in step {self.step:,}"
        return f"The training was stopped{f' by {self.signal}' if self.signal else ''} in step {self.step:,}"


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """One module of a watched model, as the tree and the coverage show it."""

    path: str
    type: str
    parent: str | None
    parameters: int = 0  # of this module and those below, with each shared parameter counted once
    trainable: int = 0
    aliases: tuple[str, ...] = ()  # other paths of the same module
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()  # "weight", "output", "input 0", ...: as they were first seen
    bases: tuple[str, ...] = ()  # the names of its base classes, without torch's Module
    source: str = ""  # the file and line of its class
    placements: tuple[
        tuple[str, str], ...
    ] = ()  # how torch has spread these tensors over ranks: "Shard(0) over dp, 4 ranks"

    def __post_init__(self) -> None:
        write_plainly(self, "path", "type", "parent", "aliases", "shapes", "bases", "source", "placements")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether a module was captured, and if not, why."""

    path: str
    type: str
    captured: bool
    kinds: tuple[Kind, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        write_plainly(self, "path", "type", "reason")


@dataclass(frozen=True, slots=True)
class HookRecord:
    """One hook. `owner` is the module's or parameter's path, or a number in the arguments; "" for the process.

    `function` is its qualified name, `where` its file and line ("" if it isn't written in Python), `number` torch's key
    for it (-1 if there is none), `ours` whether hookcore registered it, `warning` why its numbers are wrong.
    """

    scope: Scope
    owner: str
    point: str
    function: str
    where: str
    ours: bool
    number: int = -1
    options: tuple[str, ...] = ()
    legacy: bool = False
    warning: str = ""

    def __post_init__(self) -> None:
        write_plainly(self, "owner", "point", "function", "where", "options", "warning")


@dataclass(frozen=True, slots=True)
class Occasion:
    """An incident that requests a saved step: its id, its first step, and the module of its culprit."""

    incident: str
    step: int
    module: str = ""
    above: float | None = None  # a replay also looks for larger magnitudes, in one `phase` or in both ("")
    phase: Literal["", "forward", "backward"] = ""

    @property
    def reason(self) -> str:
        """Why the step is saved."""
        return f"after the incident {self.incident} of step {self.step:,}"


@dataclass(frozen=True, slots=True)
class Command:
    """A reader's request to the trainer. It is sent in the answer to a batch and takes effect at the next step.

    `settings` changes what is captured: `changes` holds live settings as a caller of `watch` would write them, and
    `paused`. `snapshot` captures the tensor of `tap` at its next call. `inventory`
    looks for hooks again. `capsule` saves the next step. With an `occasion`, an incident asks for it instead of a
    reader, so the trainer's settings and limits decide. Numbers ascend; a repeated command is carried out once.
    """

    number: int
    name: Literal["settings", "snapshot", "inventory", "capsule"]
    tap: Tap | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    occasion: Occasion | None = None


# What became of a command, as an event of the trainer is `about` it: "received" if it waits for a step, "superseded" if
# a later command replaced a value of it before a step used it.
Outcome = Literal["received", "applied", "refused", "superseded"]
COMMAND: Final = "command"  # the command's number
OUTCOME: Final = "outcome"
REPLACED_BY: Final = "replaced_by"  # the number of the later command


def about_command(number: int, outcome: Outcome, replaced_by: int | None = None) -> dict[str, Value]:
    """Return what an event is about that reports a command's outcome; nothing if the script asked, without a number."""
    if number < 0:
        return {}
    later: dict[str, Value] = {} if replaced_by is None else {REPLACED_BY: replaced_by}
    return {COMMAND: number, OUTCOME: outcome, **later}
