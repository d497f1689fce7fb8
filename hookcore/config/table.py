"""The table of settings: the name, the default, what is allowed, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from hookcore.config.readers import (
    MAX_BUDGET,
    MAX_NAME,
    MIN_MEMORY_BYTES,
    MIN_SKETCH_VALUES,
    as_list,
    integer_or_none,
    number_or_none,
    or_none,
    read_bridge,
    read_budget,
    read_choice,
    read_include,
    read_integer,
    read_keep,
    read_memory,
    read_name,
    read_patterns,
    read_server,
    read_set,
    read_sketch_values,
    shown,
)
from hookcore.errors import ArgumentError
from hookcore.records import KINDS, Phase

Attach = Literal["global", "module"]
Compiled = Literal["boundary", "inside"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `read` turns what a caller gave into what is kept, or raises ValueError with a hint."""

    name: str
    default: object  # as a caller would write it
    allowed: str
    help: str
    read: Callable[[object], object]
    from_text: Callable[[str], object] = str  # what a caller would have written for the text of a variable

    @property
    def variable(self) -> str:
        """The variable that stands in where the argument is missing."""
        return f"HOOKCORE_{self.name.upper()}"

    def value_of(self, given: object) -> object:
        """What is kept for `given`; raises ArgumentError where it is not allowed."""
        return self._read(self.name, given, self.read)

    def value_of_text(self, variable: str, text: str) -> object:
        """What is kept for a variable's text; raises ArgumentError where it is not allowed."""
        try:
            given = self.from_text(text.strip())
        except ValueError:
            given = text  # which is then refused with a hint
        return self._read(variable, given, self.read)

    def _read(self, source: str, given: object, read: Callable[[object], object]) -> object:
        try:
            return read(given)
        except (ValueError, TypeError) as error:
            message = f"{source}={shown(given)} is not allowed: {self.name} is {self.allowed}.{error}"
            raise ArgumentError(message) from None


def _listed(options: tuple[str, ...]) -> str:
    return ", ".join(map(repr, options))


_PHASES: Final = get_args(Phase)
_ATTACH: Final = get_args(Attach)
_COMPILED: Final = get_args(Compiled)
_PATTERNS_HELP: Final = (
    "A pattern is a glob on the dotted path in which `*` also crosses dots (`blocks.*.attn`), `re:` and a regular "
    "expression for the whole path (`re:.*drop.*`), `type:` and a class name or a glob on it (`type:Linear`; base "
    "classes count), `is:leaf` (no child modules), `is:root`, or a class (`nn.Linear`). A pattern matches a module, "
    "not the modules inside it."
)

SETTINGS: Final = (
    Setting(
        "include",
        None,
        "a pattern or a list of patterns, or None for every module",
        f"The modules to watch. {_PATTERNS_HELP}",
        read_include,
        as_list,
    ),
    Setting(
        "exclude",
        (),
        "a pattern or a list of patterns, or None",
        "The modules to leave out of those that `include` matches, with the same patterns.",
        read_patterns,
        as_list,
    ),
    Setting(
        "kinds",
        ("output", "output_grad", "param_grad"),
        f"one or more of {_listed(KINDS)}",
        "What is captured of each module: activations, gradients, parameters and their updates.",
        read_set(KINDS),
        as_list,
    ),
    Setting(
        "every",
        1,
        "a whole number from 1 on",
        "Capture every n-th step. The others cost next to nothing.",
        read_integer(1),
        int,
    ),
    Setting(
        "budget",
        0.05,
        f"a number above 0 and up to {MAX_BUDGET:g}, or None for no limit",
        "The share of a step's time that watching may cost, as measured in the run. Above it fewer steps are captured.",
        read_budget,
        number_or_none,
    ),
    Setting(
        "memory",
        "512MB",
        f'a number of bytes or a text such as "512MB" or "1.5GiB", at least {MIN_MEMORY_BYTES // 10**6} MB',
        "The limit of the store: the newest steps are kept exactly, older ones merged.",
        read_memory,
    ),
    Setting(
        "attach",
        "global",
        f"one of {_listed(_ATTACH)}",
        "`global` registers on the process and leaves the model untouched; `module` registers on the watched modules, "
        "for processes that run many others. Then the hooks are on the model: copies and pickles carry them.",
        read_choice(_ATTACH),
    ),
    Setting(
        "compiled",
        "boundary",
        f"one of {_listed(_COMPILED)}",
        "`boundary` sees the output and its gradient of each compiled region and changes no bit; `inside` sees every "
        "module inside, at a higher cost and with results equal within rounding.",
        read_choice(_COMPILED),
    ),
    Setting(
        "phases",
        ("train",),
        f"one or more of {_listed(_PHASES)}",
        "Whether calls with gradients, without them, or both are captured; the two are kept apart.",
        read_set(_PHASES),
        as_list,
    ),
    Setting(
        "calls",
        8,
        "a whole number from 1 on",
        "How many calls of one module in a step are kept apart; later ones merge into the last.",
        read_integer(1),
        int,
    ),
    Setting(
        "sketch_values",
        65536,
        f"a whole number from {MIN_SKETCH_VALUES} on, or None for every value",
        "How many values of a tensor go into its histogram; larger tensors are sampled. The other stats are over "
        "every value.",
        read_sketch_values,
        integer_or_none,
    ),
    Setting(
        "server",
        "auto",
        "'auto', 'thread', None, or an address such as https://box:8642",
        "Where the frames go. `auto`: to this user's dashboard on this machine, which is started if none runs. An "
        "address: to that server, with the token in `HOOKCORE_TOKEN`. `thread`: this process serves the dashboard. "
        "None: only to `watcher.store`. `HOOKCORE_URL` is another word for `HOOKCORE_SERVER`.",
        read_server,
        or_none,
    ),
    Setting(
        "keep",
        "auto",
        "'auto', a folder, or None",
        "Where the run is written to as it goes on, as Parquet files. `auto`: where the server keeps its runs; for the "
        "dashboard that is a folder of this user, and a run without a server stays in memory. None: nowhere. A server "
        "at an address has its own `--keep`.",
        read_keep,
        or_none,
    ),
    Setting(
        "bridge",
        None,
        "tensorboard:FOLDER, wandb:PROJECT, mlflow:EXPERIMENT, or None",
        "Where the scalars, the norm of all gradients and the counts of ill modules are written too, for each step. "
        "The tool must be installed; of a distributed training rank 0 writes.",
        read_bridge,
        or_none,
    ),
    Setting(
        "name",
        None,
        f"a text of 1 to {MAX_NAME} characters, or None for the script's name",
        "What the run is called on the pages.",
        read_name,
    ),
)
