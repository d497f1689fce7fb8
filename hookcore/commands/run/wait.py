"""Waits until a script imports torch, and then watches everything that it trains."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_TORCH: Final = "torch"
_CONNECTOR: Final = "trainer.connectors.callback_connector"
# The modules of trainers, and the function of `hookcore.frameworks.watching` that follows what they log.
_TRAINERS: Final[dict[str, str]] = {
    "transformers.trainer": "follow_transformers",
    f"lightning.pytorch.{_CONNECTOR}": "follow_lightning",
    f"pytorch_lightning.{_CONNECTOR}": "follow_lightning",
}


class _Finder:
    """A meta path finder that waits for some modules; it finds none itself."""

    def __init__(self) -> None:
        self._watcher: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' result; if it is for one of the modules, let its loader act at the end."""
        if name != _TORCH and name not in _TRAINERS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _follow(spec.loader, self._watch if name == _TORCH else self._follow_trainers)
                return spec
        return None

    def _watch(self, torch: ModuleType) -> None:
        self._watcher = self._watcher or _watch()

    def _follow_trainers(self, module: ModuleType) -> None:
        if self._watcher is None:
            return
        try:
            follow = getattr(import_module("hookcore.frameworks.watching"), _TRAINERS[module.__name__])
            follow(module, self._watcher)
        except Exception as error:  # another release of the framework
            self._watcher._errors.record("following a trainer's log", error)


def _follow(loader: Any, act: Callable[[ModuleType], None]) -> None:
    """Let a loader, which is otherwise unchanged, do more when it has loaded its module."""
    load = getattr(loader, "exec_module", None)
    if load is None:
        return

    def load_and_act(module: ModuleType) -> None:
        del loader.exec_module
        load(module)
        act(module)

    loader.exec_module = load_and_act


def watch_when_torch_comes() -> None:
    """Watch every model of this process as soon as torch is imported."""
    sys.meta_path.insert(0, _Finder())


def _watch() -> Any:
    """Start watching, and return the watcher. A failure must not reach the script."""
    try:
        from hookcore.watcher import Watcher, watch

        watcher = watch(name=_name())
        if isinstance(watcher, Watcher):  # not while a replay runs the script again
            watcher._ask_script()
            return watcher
    except Exception as error:
        print(f"hookcore: this run is not watched: {error}", file=sys.stderr, flush=True)
    return None


def _name() -> str:
    """Return the run's name; under torchrun it contains the rank, because every process is a run."""
    from hookcore.config import Settings, rank

    name, is_alone = Settings.of().name, os.environ.get("WORLD_SIZE", "1") == "1"
    return name if is_alone or os.environ.get("HOOKCORE_NAME") else f"{name} rank {rank()}"
