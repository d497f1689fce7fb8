"""`hookcore run`: runs an unmodified script under plain Python, with one file that is imported first.

Nothing here runs a script: this process becomes `python train.py`. Arguments, signals, exit code, tracebacks,
`__main__`, and `sys.path` are those of plain Python, because it is plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from hookcore.errors import ArgumentError

# Contains a `sitecustomize.py`, the module that Python imports before it runs anything.
START: Final = Path(__file__).parent / "start"
PATHS: Final = "PYTHONPATH"
PATHS_BEFORE: Final = "HOOKCORE_RUN_PYTHONPATH"  # the previous PYTHONPATH, which the script gets back
UNTIL: Final = "HOOKCORE_RUN_UNTIL"  # the severity of an incident after which the script ends
STOPPED: Final = 3  # the exit code then


def command_of(python: str, script: Sequence[str]) -> list[str]:
    """Return the command that runs a script with its arguments, or `-m`, a module, and its arguments."""
    if not script or script[0] == "--":
        script = script[1:]
    if not script or (script[0] == "-m" and len(script) == 1):
        raise ArgumentError(
            "nothing to run: give a script or a module, as in `hookcore run train.py` or `hookcore run -m package`"
        )
    if script[0].startswith("-") and script[0] != "-m":
        raise ArgumentError(
            f"{script[0]!r} is not a flag of `hookcore run`: flags come before the script, the script's arguments "
            "after it; `hookcore run --help` lists the flags"
        )
    return [python, *script]


def become(script: Sequence[str], variables: Mapping[str, str], environment: Mapping[str, str]) -> NoReturn:
    """Run the script in place of this process. `variables` are settings, added to those of the environment."""
    command = command_of(sys.executable, script)
    before = environment.get(PATHS)
    changed = {**environment, **variables, PATHS: os.pathsep.join(filter(None, (str(START), before)))}
    changed[PATHS_BEFORE] = "" if before is None else f"={before}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, changed)


# In the process of the script: wait until it imports torch, and then watch everything that it trains.

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

    def __init__(self, until: str) -> None:
        self._watcher: Any = None
        self._until = until

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
        self._watcher = self._watcher or watch_script(self._until)

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


def watch_when_torch_comes(until: str = "") -> None:
    """Watch every model of this process as soon as torch is imported. With a severity, end after such an incident."""
    sys.meta_path.insert(0, _Finder(until))


def watch_script(until: str = "") -> Any:
    """Start watching, and return the watcher. A failure must not reach the script."""
    try:
        from hookcore.watcher import Watcher, watch

        watcher = watch(name=_name())
        if isinstance(watcher, Watcher):  # not while a replay runs the script again
            watcher._ask_script()
            if until:
                _end_after_an_incident(watcher, until)
            return watcher
    except Exception as error:
        print(f"hookcore: this run is not watched: {error}", file=sys.stderr, flush=True)
    return None


def _name() -> str:
    """Return the run's name; under torchrun it contains the rank, because every process is a run."""
    from hookcore.config import Settings, rank

    name, is_alone = Settings.of().name, os.environ.get("WORLD_SIZE", "1") == "1"
    return name if is_alone or os.environ.get("HOOKCORE_NAME") else f"{name} rank {rank()}"


def _end_after_an_incident(watcher: Any, severity: str) -> None:
    """End the script with a sentence and a code of its own when the step ends in which an incident is known."""
    from hookcore.errors import StopTraining

    before = sys.excepthook

    def stop(incident: Any) -> None:
        raise StopTraining(incident.sentence)

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, StopTraining):
            before(kind, error, trace)
            return
        print(f"hookcore: stopped in step {watcher.current_step:,}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(STOPPED)

    watcher.on_incident(stop, at="step", severity=severity)
    sys.excepthook = say
