"""Facts about a run: its models, batches, optimizers, schedulers, options, and packages."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hookcore.config import Flat, cut_text, flatten
from hookcore.hooks.checks import parameters_of
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.clock.owners import instances_of
from hookcore.records import Value, text_of
from hookcore.records.wire import first_values

if TYPE_CHECKING:
    from hookcore.recorder.clock.owners import Owners
    from hookcore.recorder.context import Context
    from hookcore.recorder.known.roots import Root

_HYDRA: Final = "hydra.core.hydra_config"
_HYDRA_FILE: Final = "config.yaml"  # which it writes before it calls the script's function


def options_of_script(given: Collection[str]) -> Flat | None:
    """Return the options of the running script, defaults included; None if it has none that are known.

    `given` are the names on the command line: if there are several namespaces, those with one of these names count.
    """
    hydra = _options_of_hydra()
    return hydra if hydra is not None else _options_of_argparse(given)


def _options_of_argparse(given: Collection[str]) -> Flat | None:
    argparse = sys.modules.get("argparse")
    if argparse is None:
        return None
    found = [dict(vars(instance)) for instance in instances_of(argparse.Namespace)]
    if len(found) > 1:  # libraries have their own
        found = [each for each in found if not each.keys().isdisjoint(given)]
    options = {name: value for each in found for name, value in each.items() if not _is_function(value)}
    return flatten(options) if options else None


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)  # of a subcommand


def _options_of_hydra() -> Flat | None:
    """Return the composed configuration, which Hydra has written to disk."""
    module: Any = sys.modules.get(_HYDRA)
    if module is None or not module.HydraConfig.initialized():
        return None
    from omegaconf import OmegaConf

    hydra = module.HydraConfig.get()
    if hydra.output_subdir is None:
        return None
    return flatten(OmegaConf.load(Path(hydra.runtime.output_dir) / hydra.output_subdir / _HYDRA_FILE))


MAX_SCHEDULERS: Final = 8
_PARTS: Final = "_schedulers"  # of a scheduler that consists of others
# Not hyperparameters: a scheduler's optimizer, and its counters.
_STATE: Final = frozenset(
    {"optimizer", "base_lrs", "last_epoch", "verbose", "best", "mode_worse", "num_bad_epochs", "cooldown_counter"}
    | {"T_cur", "T_i"}
)


def facts_of_schedulers(optimizers: Sequence[Optimizer]) -> Flat:
    """Return the class and the hyperparameters of each scheduler.

    Those of a scheduler that consists of others are `scheduler.LinearLR.total_iters`. A second scheduler is
    `scheduler2`.
    """
    places = {id(optimizer): place for place, optimizer in enumerate(optimizers)}
    theirs = [scheduler for scheduler in instances_of(LRScheduler) if id(_optimizer_of(scheduler)) in places]
    parts = {id(part) for scheduler in theirs for part in _parts_of(scheduler)}
    whole = [scheduler for scheduler in theirs if id(scheduler) not in parts]
    whole.sort(key=lambda each: places[id(_optimizer_of(each))])
    found: dict[str, Any] = {}
    for number, each in enumerate(whole[:MAX_SCHEDULERS], 1):
        name = "scheduler" if number == 1 else f"scheduler{number}"
        found[name] = type(each).__name__
        found |= {f"{name}.{option}": value for option, value in _scheduler_options(each).items()}
    return flatten(found, left_out=len(whole[MAX_SCHEDULERS:]))


def _optimizer_of(scheduler: LRScheduler) -> Any:
    """Return the optimizer of a scheduler; without the wrapper that Accelerate puts around it."""
    found = vars(scheduler).get("optimizer")
    return found if found is None else vars(found).get("optimizer", found)


def _parts_of(scheduler: LRScheduler) -> list[LRScheduler]:
    parts = vars(scheduler).get(_PARTS)
    return [part for part in parts if isinstance(part, LRScheduler)] if isinstance(parts, list | tuple) else []


def _scheduler_options(scheduler: LRScheduler) -> dict[str, Any]:
    known = vars(scheduler)
    found = {name: value for name, value in known.items() if not name.startswith("_") and name not in _STATE}
    if parts := _parts_of(scheduler):
        found["parts"] = ", ".join(type(part).__name__ for part in parts)
        found["milestones"] = known.get("_milestones")
        for part in parts:
            named = _scheduler_options(part).items()
            found |= {f"{type(part).__name__}.{option}": value for option, value in named}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        return sorted(value.elements())
    # A function for each group of the optimizer, usually the same.
    same = isinstance(value, list) and value and callable(value[0]) and all(each is value[0] for each in value)
    return value[0] if same else value


MAX_OPTIMIZERS: Final = 8
MAX_GROUPS: Final = 16  # of an optimizer
MAX_PACKAGES: Final = 64
MAX_VERSION: Final = 40  # characters
MAX_MODELS: Final = 8
MAX_SEARCHES: Final = 4  # a loop may make an optimizer for every batch
MAX_FAILURES: Final = 8  # in a row, of looking at the same models and optimizers
_SOURCES: Final = ("models", "batches", "packages", "optimizers", "schedulers")  # the last two can be large
_DESCRIBED: Final = frozenset({"torch", "hookcore"})  # whose versions every run has


class Facts:
    """Facts as of the time when a model or an optimizer was met, or when parameters were frozen or cast.

    A scheduler's later changes are no news.
    """

    def __init__(self) -> None:
        self._find_options: Callable[[], Flat | None] = lambda: None
        self._seen: tuple[object, ...] = ()
        self._met = 0  # optimizers, when schedulers were looked for
        self._heard: dict[str, Value] = {}  # replaced, never changed, as other threads read it
        self._of: dict[str, Flat] = {}  # the newest facts of each source
        self._config: dict[str, Any] = {}  # and how much of it was cut, as fields of the description
        self._sent: dict[str, Any] = {}
        self._is_stale = True  # whether more may be known than at the last call
        self._searches = self._failures = 0
        self._lock = threading.Lock()

    def hear(self, facts: Mapping[str, Value]) -> None:
        """Receive facts from elsewhere: from the command line, or from git's thread."""
        with self._lock:
            self._heard = {**self._heard, **facts}
            self._is_stale = True

    def ask(self, find_options: Callable[[], Flat | None]) -> None:
        """Take the configuration from this function, once the script trains."""
        self._find_options = find_options

    def news(self, context: Context) -> dict[str, Any] | None:
        """Return the known fields of the run's description; None if nothing is new since the last call.

        If the training changes the objects at the same time, this may raise; the next call tries again.
        """
        plans, owners = context.plans, context.owners
        fed = sum(root.batch is not None for root in plans.roots)
        now = len(plans.roots), plans.changes, context.parameters.forms, fed, owners.met
        if now != self._seen:
            self._is_stale = True
            self._failures += 1  # until it succeeds; what always raises is given up
            if self._failures >= MAX_FAILURES:
                self._seen = now
            with DisableTorchFunction():
                self._look(plans.roots, owners)
            self._seen, self._failures = now, 0
        if not self._is_stale:
            return None
        self._is_stale = False  # before the facts are read: others may come meanwhile
        known = self._known()
        if known == self._sent:
            return None
        self._sent = known
        return known

    def _known(self) -> dict[str, Any]:
        """Return the fields of the description. What comes last is cut first."""
        sources = [self._of[name] for name in _SOURCES if name in self._of]
        merged = dict(self._heard)
        for source in sources:
            merged |= source.values
        facts, left_out = first_values(merged)
        return {"facts": facts, "facts_cut": left_out + sum(each.cut for each in sources), **self._config}

    def _look(self, roots: Sequence[Root], owners: Owners) -> None:
        optimizers, met = owners.optimizers(), owners.met
        tops = [top for root in roots if (top := root.ref()) is not None]
        found = {"models": facts_of_models(tops), "batches": facts_of_batches(roots)}
        for source, facts in {**found, "optimizers": facts_of_optimizers(optimizers)}.items():
            if facts.values:  # objects that are gone at the end of the training had the same facts before
                self._of[source] = facts
        if met > self._met and self._searches < MAX_SEARCHES:
            self._search(optimizers)
            self._met = met

    def _search(self, optimizers: Sequence[Optimizer]) -> None:
        """Look for facts that nothing leads to, once the training has begun: by then, they are there."""
        self._searches += 1
        self._of["schedulers"] = facts_of_schedulers(optimizers)
        self._of["packages"] = facts_of_packages()
        options = self._find_options()
        if options is not None:
            self._config = {"config": dict(options.values), "config_cut": options.cut}


def facts_of_models(models: Iterable[nn.Module]) -> Flat:
    """Return the number of parameters, and their dtypes and devices, the most frequent first."""
    parameters = list({id(parameter): parameter for model in models for parameter in parameters_of(model)}.values())
    known = [parameter for parameter in parameters if not isinstance(parameter, nn.UninitializedParameter)]
    if not known:
        return Flat()
    dtypes, devices = Counter[str](), Counter[str]()
    for each in known:
        dtypes[str(each.dtype).removeprefix("torch.")] += each.numel()
        devices[str(each.device)] += each.numel()
    found: dict[str, Value] = {
        "parameters": sum(each.numel() for each in known),
        "trainable": sum(each.numel() for each in known if each.requires_grad),
        "dtype": _listed(dtypes),
        "device": _listed(devices),
    }
    return Flat(found)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(name for name, _ in counts.most_common())


def facts_of_batches(roots: Iterable[Root]) -> Flat:
    """Return the shape and dtype of the first tensor that each model was given to train with."""
    found: dict[str, Any] = {}
    batches = [root.batch for root in roots if root.batch is not None]
    for number, (shape, dtype) in enumerate(batches[:MAX_MODELS], 1):
        name = "batch" if number == 1 else f"batch{number}"
        found |= {f"{name}.size": shape[0], f"{name}.shape": list(shape), f"{name}.dtype": dtype}
    return flatten(found, left_out=3 * len(batches[MAX_MODELS:]))


def facts_of_packages() -> Flat:
    """Return the versions of the imported packages that have one."""
    found: dict[str, Value] = {}
    known = sys.stdlib_module_names | _DESCRIBED
    for name, module in sys.modules.copy().items():
        if "." not in name and not name.startswith("_") and name not in known:
            # An attribute would run what a lazy module runs. A blocked import is None.
            version = getattr(module, "__dict__", {}).get("__version__")
            if isinstance(version, str):
                found[f"version.{text_of(name)}"] = cut_text(text_of(version), MAX_VERSION)
    return Flat(dict(sorted(found.items())[:MAX_PACKAGES]), max(0, len(found) - MAX_PACKAGES))


def facts_of_optimizers(optimizers: Sequence[Optimizer]) -> Flat:
    """Return the class and the hyperparameters of each optimizer and each of its groups.

    A value that all groups share is `optimizer.lr`; a different one is `optimizer.group1.lr`. A second optimizer is
    `optimizer2`.
    """
    found: dict[str, Any] = {}
    left_out = len(optimizers[MAX_OPTIMIZERS:])
    for number, optimizer in enumerate(optimizers[:MAX_OPTIMIZERS], 1):
        name = "optimizer" if number == 1 else f"optimizer{number}"
        groups = [_hyperparameters(group) for group in optimizer.param_groups]
        found[name] = type(optimizer).__name__
        if len(groups) > 1:
            found[f"{name}.groups"] = len(groups)
        for option in dict.fromkeys(option for group in groups for option in group):
            values = [group.get(option) for group in groups]
            if all(repr(value) == repr(values[0]) for value in values):
                found[f"{name}.{option}"] = values[0]
            else:
                shown = enumerate(values[:MAX_GROUPS])
                found |= {f"{name}.group{place}.{option}": value for place, value in shown}
                left_out += len(values[MAX_GROUPS:])
    return flatten(found, left_out)


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    named = {name: _number_of(value) for name, value in group.items() if name not in ("params", "param_names")}
    first_lr = named.pop("initial_lr", None)  # a scheduler that warms up has changed `lr` by now
    return named if first_lr is None else named | {"lr": first_lr}


def _number_of(value: Any) -> Any:
    """Return a hyperparameter; the value of a tensor on a device stays unknown, because reading it would wait."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.device.type == "cpu" and value.numel() == 1 else f"on {value.device}"
