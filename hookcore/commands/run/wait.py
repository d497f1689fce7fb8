"""Waits until a script imports torch, and then watches everything that it trains."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_TORCH: Final = "torch"


class _Finder:
    """A meta path finder that waits for torch; it finds no modules itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' result; for torch, make its loader call `watch` at the end."""
        if name != _TORCH:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def load_and_watch(module: ModuleType) -> None:
            del loader.exec_module
            sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
            load(module)
            _watch()

        loader.exec_module = load_and_watch  # on this one loader, which is otherwise unchanged


def watch_when_torch_comes() -> None:
    """Watch every model of this process as soon as torch is imported."""
    sys.meta_path.insert(0, _Finder())


def _watch() -> None:
    """Start watching; a failure must not reach the script."""
    try:
        from hookcore.watcher import watch

        watch(name=_name())
    except Exception as error:
        print(f"hookcore: this run is not watched: {error}", file=sys.stderr, flush=True)


def _name() -> str:
    """Return the run's name; under torchrun it contains the rank, because every process is a run."""
    from hookcore.config import Settings, rank

    name, is_alone = Settings.of().name, os.environ.get("WORLD_SIZE", "1") == "1"
    return name if is_alone or os.environ.get("HOOKCORE_NAME") else f"{name} rank {rank()}"
