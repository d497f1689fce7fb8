"""Compiled regions: how to find and name them, keep Dynamo out of our code, and recompile them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TypeVar

import torch
from torch import nn

from hookcore.hooks.compiled.cache import seen_codes
from hookcore.hooks.internals import has_graphs, reset_code, skip_frames

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
