"""`hookcore.watch`: the single call in a training script."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

from torch import nn
from typing_extensions import Never

from hookcore.config import (
    NOT_GIVEN,
    Attach,
    Capsule,
    CapsuleOn,
    Compiled,
    ConfigGiven,
    Explain,
    Pattern,
    RulesGiven,
    Settings,
    unknown_variables,
)
from hookcore.delivery.dashboard.process import join_or_start
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import Kind, Phase

if TYPE_CHECKING:
    from hookcore.watcher.watcher import Watcher

logger = logging.getLogger("hookcore")
_said: Final[set[str]] = set()  # about variables, by this process


def watch(
    model: nn.Module | None = None,
    *,
    include: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    exclude: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    kinds: Kind | Iterable[Kind] = NOT_GIVEN,
    channels: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    every: int = NOT_GIVEN,
    budget: float | None = NOT_GIVEN,
    allowance: float = NOT_GIVEN,
    memory: int | str = NOT_GIVEN,
    attach: Attach = NOT_GIVEN,
    compiled: Compiled = NOT_GIVEN,
    phases: Phase | Iterable[Phase] = NOT_GIVEN,
    calls: int = NOT_GIVEN,
    sketches: int | Literal["auto"] = NOT_GIVEN,
    sketch_values: int | None = NOT_GIVEN,
    state_every: int = NOT_GIVEN,
    snapshot_every: int | None = NOT_GIVEN,
    server: str | None = NOT_GIVEN,
    keep: str | os.PathLike[str] | None = NOT_GIVEN,
    capsule: Capsule = NOT_GIVEN,
    capsule_on: CapsuleOn | Iterable[CapsuleOn] = NOT_GIVEN,
    capsule_size: int | str = NOT_GIVEN,
    explain: Explain = NOT_GIVEN,
    bridge: str | None = NOT_GIVEN,
    bridge_layers: Pattern | Iterable[Pattern] | None = NOT_GIVEN,
    notify: str | Iterable[str] | None = NOT_GIVEN,
    rules: RulesGiven = NOT_GIVEN,
    name: str | None = NOT_GIVEN,
    config: ConfigGiven = NOT_GIVEN,
    tags: str | Iterable[str] | None = NOT_GIVEN,
    group: str | None = NOT_GIVEN,
    notes: str | None = NOT_GIVEN,
    **unknown: Never,
) -> Watcher:
    """Watch a model as it trains: start a dashboard process, or join the one that is running, and print its address.

    Without a model, watch every model that runs in this process. The watch lasts until `close()`, or until the end of
    a `with`. `server=None` starts no process.

    An argument that you leave out is taken from its environment variable, such as HOOKCORE_EVERY, and otherwise has
    the default below. docs/settings.md lists what is allowed and says more about each setting.

    include=None: The modules to watch.
    exclude=(): The modules to leave out of those that `include` matches.
    kinds=('output', 'output_grad', 'param_grad'): The tensors to capture for each module: activations, gradients,
        parameters, and parameter updates.
    channels=(): The modules whose output channels are captured: the root mean square and the share of zeros of each
        channel, in every tenth captured step.
    every=1: Capture every n-th step.
    budget=0.05: The share of a step's time that watching may cost, as measured in the run.
    allowance=0.3: Seconds of capturing per minute that the budget doesn't limit: as long as capturing takes less, every
        step is captured, so short trainings are captured whole.
    memory='512MB': The memory limit of the store.
    attach='global': Where hooks are registered.
    compiled='boundary': What to capture in compiled regions.
    phases=('train',): Which calls to capture: with gradients (`train`), without (`eval`), or both.
    calls=8: How many calls of a module per step are recorded separately.
    sketches='auto': Count histograms in every n-th captured step.
    sketch_values=65536: How many values of a tensor its histogram counts.
    state_every=50: In every n-th captured step, measure the state of optimizers, too.
    snapshot_every=200: In every n-th captured step, take [automatic snapshots](how-it-works.md#automatic-snapshots).
    server='auto': Where captured data goes.
    keep='auto': The folder for the run's Parquet files, which are written during the run.
    capsule='auto': When to save a whole step to a [capsule](capsules.md), at most three times per run.
    capsule_on=('nonfinite', 'spike'): With `capsule='error'`, which problems save the very step in which they begin:
        `nonfinite`, a loss or a gradient that isn't finite, and `spike`, a [jump of the
        loss](capsules.md#a-jump-of-the-loss), at most twice per run.
    capsule_size='1GB': The largest capsule to write.
    explain='auto': Whether the saved step of the run's first error is [explained](capsules.md#explain) by itself.
    bridge=None: Another tool that also receives each step's scalars, the norm of all gradients, and the number of
        modules with non-finite or all-zero output.
    bridge_layers=(): The modules whose statistics the bridge carries, too: rms, mean, std, and the number of
        non-finite values of each captured tensor, of at most 64 tensors.
    notify=(): Where to send a message about each incident: an apprise address such as slack://A/B/C.
    rules=None: [Thresholds of rules](rules.md), such as `{'loss-spike': {'factor': 20}, 'dead-relu': False}` (False
        switches a rule off), and functions as your own rules.
    name=None: The name of the run in the dashboard.
    config=None: [The configuration](runs.md#configuration) of the training, such as `{'lr': 0.1, 'model': {'width':
        64}}`.
    tags=(): Words for finding the run.
    group=None: The group of runs that this one belongs to, such as a sweep.
    notes=None: Notes about the run.
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "unknown")}
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(
            f"watch() was given a {type(model).__name__}; it takes a torch.nn.Module, or nothing to watch every model"
        )
    # While another thread imports it, it is there, but empty.
    is_replaying = getattr(sys.modules.get("hookcore.capsules.content"), "is_replaying", None)
    if is_replaying is not None and is_replaying():
        return import_module("hookcore.watcher.watcher").NullWatcher()  # type: ignore[no-any-return]
    for sentence in _new_sentences():
        logger.warning("hookcore: %s", sentence)
    settings = Settings.of(**given, **unknown)  # an unknown one raises, with the nearest as a hint
    if settings.server == "auto":
        with suppress(HookcoreError, OSError):  # the delivery tries again, and says why not
            join_or_start()
    # Imported only now: it takes as long as the dashboard needs to start, which is longer if all cores are busy.
    watcher: Watcher = import_module("hookcore.watcher.watcher").Watcher(model, settings)
    return watcher


def _new_sentences() -> list[str]:
    """Return what is wrong with the environment, once per process."""
    new = [variable for variable in unknown_variables() if variable not in _said]
    _said.update(new)
    return new
