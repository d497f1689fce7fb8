"""Support for `torch.compile`: hooks that it doesn't see or that step aside, and its regions, found and named."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TypeVar

import torch
from torch import nn

from hookcore import hooks
from hookcore.hooks import internals
from hookcore.hooks.internals import has_graphs, reset_code, skip_frames
from hookcore.hooks.modules import KeywordHook

# The code that Dynamo has compiled in this process.


_CONVERT_FRAME: Final = "torch._dynamo.convert_frame"


def met_codes() -> list[Any] | None:
    """Return Dynamo's own list of all code that it has met; None if it isn't fully imported."""
    codes: list[Any] | None = getattr(getattr(sys.modules.get(_CONVERT_FRAME), "input_codes", None), "seen", None)
    return codes


def until_compiled() -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return what stays empty, and which keys (table, key) stay absent, until Dynamo compiles; None if it has."""
    codes = met_codes()
    if codes is None:
        return None if _CONVERT_FRAME in sys.modules else ((), ((sys.modules, _CONVERT_FRAME),))
    return None if codes else ((codes,), ())


def seen_codes() -> Iterator[CodeType]:
    """Return all code that Dynamo has met and that still exists; none if Dynamo isn't fully imported."""
    for reference in list(met_codes() or ()):
        code = reference()
        if code is not None:
            yield code


def has_compiled() -> bool:
    """Return whether Dynamo has compiled anything in this process."""
    return any(map(has_graphs, seen_codes()))


# Compiled regions: how to find and name them, keep Dynamo out of our code, and recompile them.

Guarded = TypeVar("Guarded", bound=Callable[..., Any])

_WRAPPER: Final = "OptimizedModule"  # by name, because the class itself is in torch._dynamo
_ORIGINAL: Final = "_orig_mod"
_TORCH: Final = os.path.dirname(torch.__file__)


def guard_functions(*functions: Callable[..., Any]) -> None:
    """Keep Dynamo out of these functions and everything they call, at no cost per call.

    The mark is on the code object, needs no `torch._dynamo`, and survives `torch._dynamo.reset()`. A function that
    Dynamo meets in the middle of a trace is still inlined: such functions check `torch.compiler.is_compiling()`.
    """
    skip_frames(map(code_of, functions), _own_codes)


def guarded(function: Guarded) -> Guarded:
    """Keep Dynamo out of a function that torch or a training script calls. A decorator."""
    guard_functions(function)
    return function


def _own_codes() -> Iterator[CodeType]:
    """Return all loaded code of hookcore, any of which may be called by a guarded function."""
    # A copy is made at once. A list of items isn't: a collection in between may let another thread import something.
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] != "hookcore" or module is None:  # None blocks an import
            continue
        for each in list(vars(module).values()):
            for member in (each, *(vars(each).values() if isinstance(each, type) else ())):
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                while isinstance(function, FunctionType):
                    yield from _nested_codes(function.__code__)
                    function = getattr(function, "__wrapped__", None)  # what a decorator calls


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def code_of(function: Callable[..., Any]) -> CodeType:
    """Return the code of a plain Python function or method."""
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        raise TypeError(f"expected a plain Python function or method, got {type(function).__name__}; give its __call__")
    return plain.__code__


def is_region(module: nn.Module) -> bool:
    """Return whether calling this module enters a compiled region (`torch.compile(module)` or `module.compile()`)."""
    return _is_wrapper(module) or module.__dict__.get("_compiled_call_impl") is not None


def runs_uncompiled(module: nn.Module) -> bool:
    """Return whether this region's root is one of torch's own modules that was compiled in place.

    Dynamo doesn't compile the forward of such a module, only the user's code that it calls. With a hook on the module,
    it would compile the forward too.
    """
    return (
        not _is_wrapper(module)
        and type(module).__module__.startswith(("torch.nn.", "torch.ao."))
        and not (module._forward_hooks or module._forward_pre_hooks)
    )


def runs_under_dynamo() -> bool:
    """Return whether a compiled function or module runs in this thread, so that Dynamo compiles what it calls."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    frame: FrameType | None = sys._getframe(1)
    while eval_frame is not None and frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_globals is eval_frame.__dict__:
            return True
        frame = frame.f_back
    return False


def is_dynamo_graph(module: nn.Module) -> bool:
    """Return whether this is a graph made by Dynamo, which some backends run as a module."""
    return isinstance(module, torch.fx.GraphModule) and "compile_subgraph_reason" in module.__dict__


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's module inside `torch.compile(module)`. Other modules are returned unchanged."""
    while _is_wrapper(module):
        original = module._modules[_ORIGINAL]
        assert original is not None  # torch's own constructor puts it there
        module = original
    return module


def _is_wrapper(module: nn.Module) -> bool:
    """Check the name and the contents, because a class of the user may have the same name."""
    return type(module).__name__ == _WRAPPER and _ORIGINAL in module._modules


def clean_path(path: str) -> str:
    """Return a module's path without the segments that `torch.compile(module)` inserts."""
    return ".".join(part for part in path.split(".") if part != _ORIGINAL)


def compiled_regions(root: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost compiled regions of a model: their clean path, and the module whose call enters them."""
    regions: dict[str, nn.Module] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        clean = clean_path(path)
        if is_region(module) and not is_inside(clean, regions):
            regions[clean] = module
    return regions


def is_inside(path: str, regions: Iterable[str]) -> bool:
    """Return whether this clean path is, or lies inside, the root of one of the regions."""
    return any(region in ("", path) or path.startswith(region + ".") for region in regions)


def forget_graphs(modules: Iterable[nn.Module]) -> bool:
    """Make Dynamo recompile these modules at their next call. Return whether it had compiled any.

    This is necessary because Dynamo doesn't check again for hooks on a module that had none. Other modules whose
    forward is in the same file are recompiled too, which costs time and changes nothing.
    """
    if "torch._dynamo.convert_frame" not in sys.modules:
        return False
    # By file, because the part after a graph break is a function of Dynamo, attributed to the forward's file.
    files = {_file_of(module) for module in modules}
    # The frame that it wraps around torch's own modules.
    files.add(sys.modules["torch._dynamo.external_utils"].__file__)
    found = False
    for code in seen_codes():
        if code.co_filename in files:
            found = found or has_graphs(code)
            reset_code(code)
    return found


def _file_of(module: nn.Module) -> str | None:
    code = getattr(type(module).forward, "__code__", None)
    return None if code is None else code.co_filename


def compiled_functions(modules: Iterable[nn.Module]) -> list[str]:
    """Return the user's functions that Dynamo has compiled, with their places, except the forwards of these modules."""
    forwards = {getattr(getattr(type(module), "forward", None), "__code__", None) for module in modules}
    names: dict[str, None] = {}
    for code in seen_codes():
        if code in forwards or code.co_name.startswith("torch_dynamo_resume"):
            continue
        if not code.co_filename.startswith(_TORCH) and has_graphs(code):
            names[f"{code.co_name}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"] = None
    return list(names)


# Global hooks around compiled code: they step aside while a region runs, and cause no warning.


class StepAside:
    """Removes the hooks on the process while a compiled region runs, and still sees the region's output.

    Dynamo guards on the number of global module hooks. If it changed (an uncaptured step, a pause, a close, a later
    watch), every graph would be recompiled. So the pre-hook of a region's root removes them, and a hook on that module,
    for that one call, restores them and reports the output. Modules that other threads run meanwhile are not seen.
    """

    def __init__(
        self, off: Callable[[], None], on: Callable[[], None], saw_output: Callable[[nn.Module, Any, Any], None]
    ) -> None:
        self._off, self._on, self._saw_output = off, on, saw_output
        self._handles: list[hooks.HookHandle] = []

    @property
    def active(self) -> bool:
        """Whether a region is running, so that the global hooks are off."""
        return bool(self._handles)

    def enter(self, module: nn.Module) -> None:
        """Remove the hooks. Called by the pre-hook of a region's root."""
        # The last of the module's hooks, to see what it returns after the user's own hooks.
        self._handles.append(hooks.on_forward(module, self._leave, always_call=True))
        if len(self._handles) == 1:
            self._off()

    def _leave(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Restore the hooks: the region's root has returned or raised."""
        if torch.compiler.is_compiling():
            return
        output = rest[-1]
        self.close()
        if output is not None:  # None after an exception
            self._saw_output(module, args, output)

    def close(self) -> None:
        """Restore everything, even if a call was interrupted halfway. Calling this twice is fine."""
        # No lock, because a fork could copy it locked. Two threads that race here only cost a compilation.
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if handles:
            self._on()


class QuietHooks:
    """Keeps torch from warning about our global hooks at every call of a compiled module.

    A warnings filter isn't enough: a filter that the user sets later takes precedence, and `error` would then raise our
    warning inside the training. Instead, this replaces the function with which torch looks for global hooks. Torch
    calls it for this warning only.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._codes = frozenset(code_of(function) for function in functions)

    def on(self) -> None:
        """Hide these functions from that check. Calling this twice is fine."""
        _quiet[id(self)] = self._codes
        if _torchs_question is not None and internals.global_hook_check() is _torchs_question:
            internals.set_global_hook_check(_has_foreign_hook)

    def off(self) -> None:
        """Restore torch's own check when no hooks are left. Calling this twice is fine."""
        _quiet.pop(id(self), None)
        if _torchs_question is not None and not _quiet and internals.global_hook_check() is _has_foreign_hook:
            internals.set_global_hook_check(_torchs_question)


# Torch has one such function, so there is one table of all users.
_quiet: dict[int, frozenset[CodeType]] = {}
_torchs_question: Callable[[], Any] | None = internals.global_hook_check()


def _has_foreign_hook() -> bool:
    ours = {code for codes in list(_quiet.values()) for code in codes}
    entries = (
        *internals.BACKWARD_PRE_HOOKS.values(),
        *internals.BACKWARD_HOOKS.values(),
        *internals.FORWARD_PRE_HOOKS.values(),
        *internals.FORWARD_HOOKS.values(),
    )
    return any(_code_of_hook(hook) not in ours for hook in entries)


def _code_of_hook(hook: Any) -> Any:
    """Return the code of a hook, also of an object, and behind what `hooks.on_forward(with_kwargs=True)` registers."""
    inner = hook.fn if isinstance(hook, KeywordHook) else hook
    code = getattr(inner, "__code__", None)
    return getattr(type(inner).__call__, "__code__", None) if code is None else code


guard_functions(StepAside._leave, _has_foreign_hook)
