"""The main script of a training, so that a replay finds the classes that it defines."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hookcore import hooks
from hookcore.errors import CapsuleError

_replaying = False
_DEFINITIONS: Final = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IN_BLOCKS: Final = (ast.If, ast.Try, ast.Import, ast.ImportFrom, ast.Assign, ast.Pass)
_NAME: Final = "__mp_main__"  # as in a process that `multiprocessing` spawns


class _TrainingBegan(BaseException):
    """The script has no `if __name__ == "__main__"`, and is about to train."""


def is_replaying() -> bool:
    """Return whether a training's main script is running only to define its classes, so that it must not be watched."""
    return _replaying


def describe_main() -> dict[str, Any]:
    """Return the path of this process's main script, and its search path for modules."""
    script = sys.modules.get("__main__")
    path = getattr(script, "__file__", None)
    return {
        "python": sys.executable,
        "package": getattr(script, "__package__", None) or "",  # of `python -m package.script`
        "path": os.path.abspath(path) if path else "",
        "paths": [os.path.abspath(each) for each in sys.path],
        "arguments": list(map(str, sys.argv)),
        "folder": os.getcwd(),
    }


@contextmanager
def as_main(main: dict[str, Any], needed: bool, definitions: bool = False) -> Iterator[None]:
    """Let imports find the modules of a training and, if needed, run its main script, under another name.

    `definitions`: run only its imports and definitions.
    """
    before = sys.modules["__main__"], sys.path[:]
    sys.path += [each for each in main["paths"] if each not in sys.path]
    try:
        if needed:
            sys.modules["__main__"] = sys.modules[_NAME] = _run(main, definitions)
        yield
    finally:
        sys.modules["__main__"], sys.path[:] = before
        sys.modules.pop(_NAME, None)


def _run(main: dict[str, Any], definitions: bool) -> ModuleType:
    """Run the script until its end, or until it begins to train."""
    global _replaying
    path = Path(main["path"] or "(none)")
    try:
        source = path.read_bytes()
        code = compile(only_definitions(source) if definitions else source, str(path), "exec")
    except (OSError, SyntaxError) as error:
        raise CapsuleError(
            f"the model is defined in the main script {path}, which can't be read ({error}): put it back, or define "
            "the model in a module"
        ) from None
    module = ModuleType(_NAME)
    module.__file__, module.__package__ = str(path), main.get("package") or None
    sys.modules["__main__"] = sys.modules[_NAME] = module  # for pickles that the script itself opens
    handle, arguments, folder = hooks.on_optimizer_step_pre(None, _stop), sys.argv, os.getcwd()
    sys.argv, _replaying = main["arguments"], True
    try:
        with contextlib.suppress(OSError):  # it is gone, or on another machine
            os.chdir(main["folder"])
        exec(code, module.__dict__)
    except _TrainingBegan:
        pass
    finally:
        sys.argv, _replaying = arguments, False
        os.chdir(folder)
        handle.remove()
    return module


def only_definitions(source: bytes) -> ast.Module:
    """Return a script without the statements that do something: its imports, definitions, and constants are left."""
    script = ast.parse(source)
    script.body = [each for each in script.body if _defines(each)]
    return script


def _defines(statement: ast.stmt) -> bool:
    parts = list(ast.walk(statement))
    if isinstance(statement, ast.If | ast.Try):  # an import that depends on a version
        if not all(isinstance(each, _IN_BLOCKS) for each in parts if isinstance(each, ast.stmt)):
            return False
    elif not isinstance(statement, ast.Assign | ast.AnnAssign):
        return isinstance(statement, _DEFINITIONS)
    return not any(isinstance(each, ast.Call | ast.Await | ast.Yield) for each in parts)


def _stop(*_: Any) -> None:
    raise _TrainingBegan
