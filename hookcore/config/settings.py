"""The settings: a table with each name, default, and allowed values; and those of one watcher."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from hookcore.config.flat import HIDDEN, MAX_VALUES, Flat, config_of_text, read_config
from hookcore.config.readers import (
    MAX_ALLOWANCE_S,
    MAX_BUDGET,
    MAX_NAME,
    MAX_TAG,
    MAX_TAGS,
    MAX_WORDS,
    MIN_MEMORY_BYTES,
    MIN_SKETCH_VALUES,
    GivenRules,
    Pattern,
    RulesGiven,
    addresses_of,
    did_you_mean,
    int_or_auto,
    items_of,
    optional,
    or_none,
    read_bridge,
    read_budget,
    read_choice,
    read_include,
    read_integer,
    read_keep,
    read_memory,
    read_name,
    read_notify,
    read_number,
    read_patterns,
    read_rules,
    read_server,
    read_set,
    read_size,
    read_sketches,
    read_tags,
    read_text,
    rules_of_text,
    setting,
    settings_in,
)
from hookcore.errors import ArgumentError
from hookcore.records import TENSOR_KINDS, Kind, Phase

Attach = Literal["global", "module"]
Compiled = Literal["boundary", "materialized", "inside"]
Capsule = Literal["auto", "error", "exception", "never"]
CapsuleOn = Literal["nonfinite", "spike"]
Explain = Literal["auto", "never"]


def _listed(options: tuple[str, ...]) -> str:
    return ", ".join(map(repr, options))


_PHASES: Final = get_args(Phase)
_ATTACH: Final = get_args(Attach)
_COMPILED: Final = get_args(Compiled)
_CAPSULE: Final = get_args(Capsule)
_CAPSULE_ON: Final = get_args(CapsuleOn)
_EXPLAIN: Final = get_args(Explain)
_LIST: Final = or_none(items_of)  # how a variable has one
_PATTERNS_HELP: Final = (
    "[A pattern](patterns.md) is a path or a glob, such as `blocks.*.attn` (`*` also matches dots); `re:` with a "
    "regular expression; `type:Linear`; `is:leaf`; `depth:2`; or a class. `!` negates a pattern."
)

# The settings of one watcher, as a caller writes them and as they are kept; and the variables that are no settings.


class _NotGiven:
    """The default of an argument that is replaced by an environment variable or the default of the table."""

    def __repr__(self) -> str:
        return "<not given>"


ConfigGiven: TypeAlias = object  # a mapping, a namespace, a dataclass, or None
NOT_GIVEN: Final[Any] = _NotGiven()  # Any, so that a parameter of any type can have it as its default


class WatchSettings(TypedDict, total=False):
    """The keyword arguments of `hookcore.watch`, for functions that pass them on: `**settings: Unpack[...]`."""

    include: Pattern | Iterable[Pattern] | None
    exclude: Pattern | Iterable[Pattern] | None
    kinds: Kind | Iterable[Kind]
    channels: Pattern | Iterable[Pattern] | None
    every: int
    budget: float | None
    allowance: float
    memory: int | str
    attach: Attach
    compiled: Compiled
    phases: Phase | Iterable[Phase]
    calls: int
    sketches: int | Literal["auto"]
    sketch_values: int | None
    state_every: int
    snapshot_every: int | None
    server: str | None
    keep: str | os.PathLike[str] | None
    capsule: Capsule
    capsule_on: CapsuleOn | Iterable[CapsuleOn]
    capsule_size: int | str
    explain: Explain
    bridge: str | None
    bridge_layers: Pattern | Iterable[Pattern] | None
    notify: str | Iterable[str] | None
    rules: RulesGiven
    name: str | None
    config: ConfigGiven
    tags: str | Iterable[str] | None
    group: str | None
    notes: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one watcher. `Settings.of` checks every value and fills in the defaults."""

    include: tuple[Pattern, ...] = setting(
        None,
        "a pattern, a list of patterns, or None for every module",
        f"The modules to watch. {_PATTERNS_HELP}",
        read_include,
        _LIST,
        "hooks",
    )
    exclude: tuple[Pattern, ...] = setting(
        (),
        "a pattern, a list of patterns, or None",
        "The modules to leave out of those that `include` matches. Takes the same patterns.",
        read_patterns,
        _LIST,
        "hooks",
    )
    kinds: frozenset[Kind] = setting(
        ("output", "output_grad", "param_grad"),
        f"one or more of {_listed(TENSOR_KINDS)}",
        "The tensors to capture for each module: activations, gradients, parameters, and parameter updates.",
        read_set(TENSOR_KINDS),
        _LIST,
        "hooks",
    )
    channels: tuple[Pattern, ...] = setting(
        (),
        "a pattern, a list of patterns, or None",
        "The modules whose output channels are captured: the root mean square and the share of zeros of each channel, "
        "in every tenth captured step. See [Probes](probes.md).",
        read_patterns,
        _LIST,
        "probes",
    )
    every: int = setting(
        1,
        "an integer of 1 or more",
        "Capture every n-th step. The other steps cost almost nothing.",
        read_integer(1),
        int,
        "cadence",
    )
    budget: float | None = setting(
        0.05,
        f"a number above 0 and up to {MAX_BUDGET:g}, or None for no limit",
        "The share of a step's time that watching may cost, as measured in the run. If watching costs more, fewer "
        "steps are captured.",
        optional(read_budget),
        or_none(float),
        "cadence",
    )
    allowance: float = setting(
        0.3,
        f"a number from 0 to {MAX_ALLOWANCE_S:g}",
        "Seconds of capturing per minute that the budget doesn't limit: as long as capturing takes less, every step is "
        "captured, so short trainings are captured whole.",
        read_number(0, MAX_ALLOWANCE_S, "It is a number of seconds in a minute; 0 allows nothing beyond the budget."),
        float,
    )
    memory: int = setting(
        "512MB",
        f'a number of bytes or a size such as "512MB" or "1.5GiB", at least {MIN_MEMORY_BYTES // 10**6} MB',
        "The memory limit of the store. The newest steps are stored exactly; older steps are merged.",
        read_memory,
    )
    attach: Attach = setting(
        "global",
        f"one of {_listed(_ATTACH)}",
        "Where hooks are registered. `global`: on the process, so the model stays untouched. `module`: on the watched "
        "modules, for processes that run many other modules; copies and pickles of the model then contain the hooks.",
        read_choice(_ATTACH),
    )
    compiled: Compiled = setting(
        "boundary",
        f"one of {_listed(_COMPILED)}",
        "What to capture in compiled regions. `boundary`: the region's output and its gradient; results stay the same, "
        "bit for bit. `materialized`: also the outputs of modules that the compiled code keeps for its backward pass, "
        "without a change of its graphs or results; this needs torch 2.13. `inside`: every module in the region, also "
        "gradients; this needs torch 2.13, costs more, and changes results within rounding.",
        read_choice(_COMPILED),
    )
    phases: frozenset[Phase] = setting(
        ("train",),
        f"one or more of {_listed(_PHASES)}",
        "Which calls to capture: with gradients (`train`), without (`eval`), or both. The two are recorded separately.",
        read_set(_PHASES),
        _LIST,
    )
    calls: int = setting(
        8,
        "an integer of 1 or more",
        "How many calls of a module per step are recorded separately. Later calls are merged into the last one.",
        read_integer(1),
        int,
    )
    sketches: int | Literal["auto"] = setting(
        "auto",
        "an integer of 1 or more, or 'auto'",
        "Count histograms in every n-th captured step. `auto`: in every captured step, or in as few as every eighth if "
        "the budget then allows more captured steps. The other stats are in every captured step.",
        read_sketches,
        int_or_auto,
    )
    sketch_values: int | None = setting(
        65536,
        f"an integer of {MIN_SKETCH_VALUES} or more, or None for every value",
        "How many values of a tensor its histogram counts. Larger tensors are sampled. All other stats use every "
        "value.",
        optional(read_integer(MIN_SKETCH_VALUES)),
        or_none(int),
    )
    state_every: int = setting(
        50,
        "an integer of 1 or more",
        "In every n-th captured step, measure the state of optimizers, too. That is what they keep for each weight, "
        "such as Adam's moments; and what a step changes, unless `kinds` has `update`. The heads of fused attention "
        "are measured in the same steps.",
        read_integer(1),
        int,
    )
    snapshot_every: int | None = setting(
        200,
        "an integer of 1 or more, or None for none",
        "In every n-th captured step, take [automatic snapshots](how-it-works.md#automatic-snapshots). These are "
        "attention maps, and outputs of layers all over the model, up to 4 MiB, so that a run that has ended has "
        "tensors to look at. In a long run, they get rarer: four steps have them each time that its length doubles.",
        optional(read_integer(1)),
        or_none(int),
    )
    server: str | None = setting(
        "auto",
        "'auto', 'thread', None, or an address such as https://box:8642",
        "Where captured data goes. `auto`: to your dashboard on this machine, which hookcore starts if none is "
        "running. An address: to that server, with the token in `HOOKCORE_TOKEN`. `thread`: to a dashboard in this "
        "process. None: only to `watcher.store`. `HOOKCORE_URL` is an alias of `HOOKCORE_SERVER`.",
        optional(read_server),
        or_none(),
        alias="HOOKCORE_URL",
    )
    keep: str | None = setting(
        "auto",
        "'auto', a folder, or None",
        "The folder for the run's Parquet files, which are written during the run. `auto`: the server's folder; your "
        "dashboard uses a private folder, and a run without a server stays in memory. None: write no files. A "
        "server at an address has its own `--keep`.",
        optional(read_keep),
        or_none(),
    )
    capsule: Capsule = setting(
        "auto",
        f"one of {_listed(_CAPSULE)}",
        "When to save a whole step to a [capsule](capsules.md), at most three times per run. `error`: when a step "
        "becomes non-finite, when an exception ends it, and after the first incident of severity error. `exception`: "
        "only when an exception ends it. `never`: only when you ask for it. `auto`: `error` with a server, `never` "
        "without. The file is in your private folder on the machine that runs the training.",
        read_choice(_CAPSULE),
    )
    capsule_on: frozenset[CapsuleOn] = setting(
        _CAPSULE_ON,
        f"one or more of {_listed(_CAPSULE_ON)}",
        "With `capsule='error'`, which problems save the very step in which they begin: `nonfinite`, a loss or a "
        "gradient that isn't finite, and `spike`, a [jump of the loss](capsules.md#a-jump-of-the-loss), at most twice "
        "per run.",
        read_set(_CAPSULE_ON),
        _LIST,
    )
    capsule_size: int = setting(
        "1GB",
        'a number of bytes or a size such as "512MB" or "4GiB"',
        "The largest capsule to write. A larger step is not saved, and an event says so. On a GPU, also the memory for "
        "the [weights and batches of the last steps](capsules.md#on-a-gpu).",
        read_size,
    )
    explain: Explain = setting(
        "auto",
        f"one of {_listed(_EXPLAIN)}",
        "Whether the saved step of the run's first error is [explained](capsules.md#explain) by itself. `auto`: once, "
        "if the capsule has at most 512 MiB; a process with a slightly lower priority runs the step again on the CPU, "
        "and the operator, the line, and the layers become events of the run. `never`: only when you ask for it.",
        read_choice(_EXPLAIN),
    )
    bridge: str | None = setting(
        None,
        "tensorboard:FOLDER, wandb:PROJECT, mlflow:EXPERIMENT, or None",
        "Another tool that also receives each step's scalars, the norm of all gradients, and the number of modules "
        "with non-finite or all-zero output. The tool must be installed. In distributed training, only rank 0 writes.",
        optional(read_bridge),
        or_none(),
    )
    bridge_layers: tuple[Pattern, ...] = setting(
        (),
        "a pattern, a list of patterns, or None",
        "The modules whose statistics the bridge carries, too: rms, mean, std, and the number of non-finite values of "
        "each captured tensor, of at most 64 tensors.",
        read_patterns,
        _LIST,
    )
    notify: tuple[str, ...] = setting(
        (),
        "an apprise address, a list of addresses, or None",
        "Where to send a message about each incident: an apprise address such as slack://A/B/C. See "
        "[Notifications](notifications.md). It is a secret: the variable keeps it out of process lists. In "
        "distributed training, only rank 0 sends messages.",
        read_notify,
        or_none(addresses_of),
        secret=True,
    )
    rules: GivenRules = setting(
        None,
        "thresholds by rule, a function, a list of these, or None",
        "[Thresholds of rules](rules.md), such as `{'loss-spike': {'factor': 20}, 'dead-relu': False}` (False switches "
        "a rule off), and functions as your own rules. As a flag or a variable: `loss-spike.factor=20,dead-relu=off`.",
        read_rules,
        or_none(rules_of_text),
    )
    name: str = setting(
        None,
        f"a string of 1 to {MAX_NAME} characters, or None for the script's name",
        "The name of the run in the dashboard.",
        read_name,
    )
    config: Flat = setting(
        None,
        "a mapping, a namespace, a dataclass, or None",
        "[The configuration](runs.md#configuration) of the training, such as `{'lr': 0.1, 'model': {'width': 64}}`. "
        f"The list of runs shows, sorts, and finds its values, at most {MAX_VALUES}. Without it, hookcore takes the "
        "options on the script's command line, as in `train.py --lr 0.1`. As a flag or a variable: "
        "`lr=0.1,model.width=64`, or JSON.",
        read_config,
        or_none(config_of_text),
        of_run=True,
    )
    tags: tuple[str, ...] = setting(
        (),
        f"a string, or a list of at most {MAX_TAGS} strings of 1 to {MAX_TAG} characters",
        "Words for finding the run. You can change them in the dashboard.",
        read_tags,
        _LIST,
        of_run=True,
    )
    group: str = setting(
        None,
        f"a string of at most {MAX_NAME} characters, or None",
        "The group of runs that this one belongs to, such as a sweep.",
        read_text(MAX_NAME),
        or_none(),
        of_run=True,
    )
    notes: str = setting(
        None,
        f"a string of at most {MAX_WORDS} characters, or None",
        "Notes about the run. You can change them in the dashboard.",
        read_text(MAX_WORDS),
        or_none(),
        of_run=True,
    )

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None, /, **arguments: object) -> Settings:
        """Return the settings of a call: its arguments, else the variables, else the defaults.

        An argument that is NOT_GIVEN counts as missing. `environment` replaces the variables of the process. A wrong
        value raises ArgumentError.
        """
        names = [setting.name for setting in SETTINGS]
        for name in arguments:
            if name not in names:
                raise ArgumentError(
                    f"{name!r} is not a setting: the settings are {', '.join(names)}.{did_you_mean(name, names)}"
                )
        variables = os.environ if environment is None else environment
        values = {
            setting.name: setting.value_of(arguments[setting.name])
            if arguments.get(setting.name, NOT_GIVEN) is not NOT_GIVEN
            else setting.value_in(variables)
            for setting in SETTINGS
        }
        return cls(**values)  # type: ignore[arg-type]  # each reader returns its field's type; a test holds it

    @property
    def capsule_when(self) -> Capsule:
        """When to write a capsule. A run without a server writes no files by default."""
        return self.capsule if self.capsule != "auto" else "error" if self.server is not None else "never"

    def as_dict(self) -> dict[str, Any]:
        """Return how the run is watched as a caller would write it, in types that JSON has; but without secrets."""
        plain: dict[str, Any] = {each.name: _plain(getattr(self, each.name)) for each in SETTINGS if not each.of_run}
        return plain | {each.name: [HIDDEN for _ in plain[each.name]] for each in SETTINGS if each.secret}


SETTINGS: Final = settings_in(Settings)
LIVE: Final = {setting.name: setting for setting in SETTINGS if setting.live}  # what a running training can change


def _plain(value: object) -> object:
    if isinstance(value, GivenRules):
        return dict(value.thresholds)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [f"type:{each.__name__}" if isinstance(each, type) else each for each in value]
    return value


# Environment variables that are not settings of a training, and not a launcher's.

PREFIX: Final = "HOOKCORE_"
TOKEN: Final = "HOOKCORE_TOKEN"
# Those of servers, collectors, and hookcore's own processes, and the others of trainings, without the prefix.
_OTHERS: Final = (
    "ALLOWED_HOSTS ALLOW_COMMANDS CA_FILE CERTFILE CLICKHOUSE_PASSWORD DASHBOARD FRAME_ANCESTORS GPU_GRAPHS "
    "GPU_TOGETHER HOME HOST IDLE_STOP_S INSERT KEEP_LIMIT KEYFILE LISTEN_FD LOCK_FD LOST_AFTER_S MAX_BODY MAX_CLIENTS "
    "MAX_CONNECTIONS MAX_RUNS PORT READ_TOKEN RECEIVE_S RETAIN ROOT_PATH RULES_FILE RUN_PYTHONPATH RUN_UNTIL SPOOL "
    "SPOOL_LIMIT STORE SYNC TO TOKEN TO_TOKEN URL"
)
KNOWN_VARIABLES: Final = frozenset(
    [*(each.variable for each in SETTINGS), *(f"{PREFIX}{name}" for name in _OTHERS.split())],
)


def token_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the token for a server; files and secret stores often end it with a newline."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def unknown_variables(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence about each variable that looks like one of hookcore's and is none."""
    for name in sorted(os.environ if environment is None else environment):
        if name.startswith(PREFIX) and name not in KNOWN_VARIABLES:
            yield f"the variable {name} is unknown and has no effect.{did_you_mean(name, KNOWN_VARIABLES)}"
