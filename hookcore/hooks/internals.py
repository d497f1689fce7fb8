"""The private names of torch that hookcore relies on. No other file uses one, as
tests/repository/test_architecture.py checks.

If a release of torch lacks a name, hookcore uses something that is slower or sees less. If that isn't possible, the
import of this module, and so `hookcore.watch`, says which name is missing. `hookcore doctor` lists tested releases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils._python_dispatch as python_dispatch
from torch import Tensor, nn
from torch._C import _ImperativeEngine
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Variable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as _modules
from torch.nn.parallel import DistributedDataParallel
from torch.package.package_exporter import PackageExporter
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_iter as tree_iter
from torch.utils._pytree import tree_map as tree_map
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as _dataloader

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket as GradBucket


def required(owner: Any, name: str) -> Any:
    """Return an attribute of torch. Raises ImportError with an explanation if this release doesn't have it."""
    try:
        return getattr(owner, name)
    except AttributeError:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise ImportError(
            f"torch {torch.__version__} has no {where}.{name}, which hookcore needs: use a release of torch that "
            "docs/versions.md lists as tested"
        ) from None


_C: Final[Any] = torch._C

# Modes and passes
DisableTorchFunction: Final = required(_C, "DisableTorchFunction")
DisableTorchFunctionSubclass: Final = required(_C, "DisableTorchFunctionSubclass")
disable_current_modes: Final = required(python_dispatch, "_disable_current_modes")
Engine = _ImperativeEngine
current_graph_task: Final[Callable[[], int]] = required(_C, "_current_graph_task_id")  # -1 outside of a backward pass
current_node: Final[Callable[[], Any]] = required(_C, "_current_autograd_node")  # None outside of a backward pass
tracing_state: Final[Callable[[], Any]] = required(_C, "_get_tracing_state")
# Without this function, a mode is assumed to be active, which only leads to slower code.
function_modes: Final[Callable[[], int]] = getattr(_C, "_len_torch_function_stack", lambda: 1)
dispatch_modes: Final[Callable[[], int]] = getattr(_C, "_len_torch_dispatch_stack", lambda: 1)
# Likewise, autocast is assumed to be on.
any_autocast: Final[Callable[[], bool]] = getattr(_C, "_is_any_autocast_enabled", lambda: True)
_stream_on: Final = getattr(_C, "_cuda_getCurrentRawStream", lambda gpu: torch.cuda.current_stream(gpu).cuda_stream)
# Torch wraps these two in functions.
is_stream_capturing: Final[Callable[[], bool]] = getattr(
    _C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
current_gpu: Final[Callable[[], int]] = getattr(_C, "_cuda_getDevice", torch.cuda.current_device)
is_wrapped: Final[Callable[[Tensor], bool]] = required(_C._functorch, "is_functorch_wrapped_tensor")
# Without this function, a call inside a transform of torch.func is recognized by its outputs only.
transform: Final[Callable[[], Any]] = getattr(_C._functorch, "peek_interpreter_stack", lambda: None)

# Tables of hooks
WrappedHook: Final[Any] = required(_modules, "_WrappedHook")
FORWARD_PRE_HOOKS: Final[dict[int, Any]] = required(_modules, "_global_forward_pre_hooks")
FORWARD_HOOKS: Final[dict[int, Any]] = required(_modules, "_global_forward_hooks")
FORWARD_HOOKS_WITH_KWARGS: Final[dict[int, Any]] = required(_modules, "_global_forward_hooks_with_kwargs")
FORWARD_HOOKS_ALWAYS_CALLED: Final[dict[int, Any]] = required(_modules, "_global_forward_hooks_always_called")
BACKWARD_PRE_HOOKS: Final[dict[int, Any]] = required(_modules, "_global_backward_pre_hooks")
BACKWARD_HOOKS: Final[dict[int, Any]] = required(_modules, "_global_backward_hooks")
# These bypass __torch_function__ and the properties of subclasses.
gradient_hooks_of: Final[Callable[[Tensor], Any]] = required(_C.TensorBase, "_backward_hooks").__get__
accumulation_hooks_of: Final[Callable[[Tensor], Any]] = required(_C.TensorBase, "_post_accumulate_grad_hooks").__get__
no_forward: Final = getattr(_modules, "_forward_unimplemented", None)

# Code
_FRAMES: Final = 12  # of our own hooks, between a pre-hook and the call that runs it
PIPELINES: Final = "torch.distributed.pipelining.stage"  # the module that is imported if there are any
_WRAPPERS: Final = 64  # frames between a pipeline and the model of its stage
REHEARSAL: Final = -1
MODULE_CALL: Final[CodeType] = required(nn.Module, "_call_impl").__code__
PACKAGE_EXPORT: Final[CodeType] = required(PackageExporter, "_execute_dependency_graph").__code__
SCALER_STEPS: Final = frozenset(
    step.__code__ for name in ("step", "_maybe_opt_step") if (step := getattr(GradScaler, name, None)) is not None
)


def backward_flag() -> bool | None:
    """Return whether the global backward hooks are full ones, False for legacy ones, or None if there are none."""
    flag: bool | None = required(_modules, "_global_is_full_backward_hook")
    return flag


def clear_backward_flag() -> None:
    """Let torch accept legacy hooks again."""
    _modules._global_is_full_backward_hook = None


def keywords_of(module: nn.Module) -> dict[str, Any] | None:
    """Return the keyword arguments of a call whose global pre-hook is running, which torch doesn't pass to it.

    None if they can't be found, so that nothing is assumed.
    """
    found = arguments_of(module)
    return None if found is None else found[1]


def arguments_of(module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call one of whose hooks is running, as far as other hooks have changed them until now.

    None if they can't be found.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_filename == MODULE_CALL.co_filename:
            known = frame.f_locals
            if known.get("self") is module and isinstance(known.get("kwargs"), dict):
                return tuple(known.get("args", ())), dict(known["kwargs"])
        frame = frame.f_back
    return None


def pipeline_call() -> int | None:
    """Return the number of the micro-batch that a torch pipeline passes to the running call; None without a pipeline.

    A stage gets several before their backward passes begin, and nothing else tells them from several calls in a pass.
    Before the first one, it runs once to learn the shapes, with values that mean nothing: REHEARSAL.
    """
    module = sys.modules.get(PIPELINES)
    if module is None:
        return None
    known = _code_of_stages(module)
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_WRAPPERS):
        if frame is None:
            return None
        if frame.f_code in known:
            return REHEARSAL if known[frame.f_code] else frame.f_locals.get("fwd_chunk_id")
        frame = frame.f_back
    return None


@lru_cache(1)
def _code_of_stages(module: ModuleType) -> dict[CodeType, bool]:
    """Return the code with which a stage calls its model, and whether that is a rehearsal."""
    stages = [getattr(module, name, None) for name in ("_PipelineStageBase", "PipelineStage")]
    names = {"forward_one_chunk": False, "_forward_metadata_inference": True, "_shape_inference": True}
    methods = ((getattr(stage, name, None), rehearses) for stage in stages for name, rehearses in names.items())
    return {method.__code__: rehearses for method, rehearses in methods if method is not None}


def generator_address(generator: Any) -> int:
    """Return where the CPU's part of a generator is in memory; 0 if that is unknown."""
    return int(getattr(generator, "_cdata", 0))


MemoryKey: Final[Any] = StorageWeakRef  # its `cdata` is the memory's identity as long as the key exists


def memory_of(tensor: Tensor) -> Any:
    """Return a weak reference to a tensor's memory, or None if it has none of its own. It doesn't keep the data."""
    try:
        return MemoryKey(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


CHECKPOINT: Final = "torch.utils.checkpoint"

# Nodes of the autograd graph. Each thread numbers those that it makes; this is the number of the next one.
next_node_number: Final[Callable[[], int] | None] = getattr(torch.autograd, "_get_sequence_nr", None)


def node_number(node: Any) -> int:
    """Return the number that the thread gave to a node."""
    number: int = node._sequence_nr()
    return number


def made_by(node: Any, number: int = 0) -> tuple[int, ...]:
    """Return the shape of an output of a node's operator. Raises ValueError if not all sizes are known."""
    shape = tuple(node._input_metadata[number].shape)
    if not all(type(size) is int for size in shape):
        raise ValueError(f"the shape {shape} has sizes that aren't numbers")
    return shape


def given_to(node: Any, place: int) -> tuple[int, ...]:
    """Return the shape of an input of a node's operator. Raises LookupError if no gradient flows to it."""
    source, number = node.next_functions[place]
    if source is None:
        raise LookupError(place)
    return made_by(source, number)


def is_transposed(node: Any) -> bool:
    """Return whether the node of a convolution is that of a transposed one."""
    return bool(node._saved_transposed)


def saved_by(node: Any, *names: str) -> Tensor | None:
    """Return a tensor that a node keeps for its backward pass, by the first of these names that it has.

    Raises LookupError with the module of a hook that has packed it: that of a checkpoint would run its operators again.
    """
    name = next((name for name in names if hasattr(node, f"_raw_saved_{name}")), None)
    if name is None:
        return None
    return _unpacked(getattr(node, f"_raw_saved_{name}"), lambda: getattr(node, f"_saved_{name}"))


def saved_by_function(node: Any, number: int | None = None) -> list[Tensor | None]:
    """Return what the node of an `autograd.Function` keeps: all tensors, or so many of the first.

    Raises LookupError as `saved_by` does.
    """
    saved = lru_cache(lambda: node.saved_tensors)  # torch unpacks all of them each time

    def read(place: int) -> Callable[[], Tensor | None]:
        return lambda: saved()[place]

    return [_unpacked(each, read(place)) for place, each in enumerate(node._raw_saved_tensors[:number])]


def _unpacked(kept: Any, read: Callable[[], Tensor | None]) -> Tensor | None:
    hook = getattr(kept, "unpack_hook", kept)  # older releases of torch don't say
    if hook is None:
        return read()
    if getattr(hook, "__module__", "") == CHECKPOINT and isinstance(kept.data, Tensor):
        return kept.data  # the checkpoint is repeating its operators, and passes on what they keep
    raise LookupError(getattr(hook, "__module__", ""))


def option_of(node: Any, name: str) -> Any:
    """Return a number or a flag that a node keeps for its backward pass; None if it has none."""
    return getattr(node, f"_saved_{name}", None)


def function_of(node: Any) -> Any:
    """Return the user's `autograd.Function` that made a node."""
    return getattr(type(node), "_forward_cls", type(node))


def global_hook_check() -> Callable[[], Any] | None:
    """Return the function with which torch looks for global hooks at each call of a compiled module, or None."""
    return getattr(_modules, "_has_any_global_hook", None)


def set_global_hook_check(check: Callable[[], Any]) -> None:
    """Replace that function."""
    _modules._has_any_global_hook = check


def engine() -> Any:
    """Return the engine that runs the backward passes that Python starts."""
    return required(Variable, "_execution_engine")


def set_engine(engine: Any) -> None:
    """Let another engine run them."""
    Variable._execution_engine = engine


def active_wrapper() -> Any:
    """Return the DistributedDataParallel whose forward is running, or None."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None)


def communication_hooks(model: DistributedDataParallel) -> list[tuple[Any, Any]]:
    """Return the model's own list of communication hooks with their states; built-in ones aren't in it."""
    hooks: list[tuple[Any, Any]] = required(model, "_comm_hooks")
    return hooks


# The hooks that all-reduce over the group in their state, or over all processes if it is None, and the one by which
# DistributedDataParallel reduces in mixed precision. All ranks then have the same gradients.
_HOOKS: Final = "torch.distributed.algorithms.ddp_comm_hooks"
REDUCING_HOOKS: Final = frozenset(
    f"{_HOOKS}.default_hooks.{name}" for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
)
MIXED_PRECISION_HOOK: Final = f"{_HOOKS}.mixed_precision_hooks._reducer_allreduce_and_upcast_hook"


def default_store() -> Any:
    """Return the store by which the processes of the default process group met. Asks no other process."""
    from torch.distributed import distributed_c10d

    return required(distributed_c10d, "_get_default_store")()


def default_group() -> list[tuple[Any, str]] | None:
    """Return whose attribute the default process group is, if there may be one; None if that is unknown."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed import distributed_c10d

    world = getattr(distributed_c10d, "_world", None)
    return [(world, "default_pg")] if hasattr(world, "default_pg") else None


def root_mesh_of(mesh: Any) -> Any:
    """Return the device mesh that a mesh is a slice of, or itself. Asks no other process."""
    find = getattr(mesh, "_get_root_mesh", None)
    if find is not None:
        return find()
    # Older releases, such as 2.6 and 2.8, keep the slices of a thread in one place.
    slices = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    find = getattr(slices, "get_root_mesh", None)
    return mesh if find is None else find(mesh)


# Saved tensors. torch before 2.8 doesn't say which pair is on top.
top_saved_pair: Final[Callable[[bool], Any] | None] = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)
saved_pairs_enabled: Final[Callable[[], bool]] = required(_C._autograd, "_saved_tensors_hooks_is_enabled")
pop_saved_pair: Final[Callable[[], None]] = required(_C._autograd, "_pop_saved_tensors_default_hooks")


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; -1 for tensors of inference mode, which don't count."""
    return -1 if tensor.is_inference() else tensor._version


def stream_number(device: torch.device) -> int:
    """Return the number of the current stream of a device; 0 if it isn't CUDA."""
    return int(_stream_on(device.index or 0)) if device.type == "cuda" else 0


def mark_static(tensor: Tensor) -> None:
    """Let the CUDA graphs of inductor read a tensor where it is, instead of a copy."""
    from torch._dynamo import mark_static_address

    mark_static_address(tensor, guard=False)


def on_stream_of_graphs(device: torch.device) -> bool:
    """Return whether the current stream is the one on which inductor records its CUDA graphs."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    manager = None if trees is None else trees.get_manager(device.index or 0, create_if_none_exists=False)
    return manager is not None and bool(torch.cuda.current_stream(device) == manager.stream)


def zero_all(tensors: list[Tensor]) -> None:
    """Set all tensors to zero, in one kernel if torch can."""
    together = getattr(torch, "_foreach_zero_", None)
    if together is not None:
        together(tensors)
        return
    for tensor in tensors:
        tensor.zero_()


def copy_together(copies: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors of one device and one type with as few kernels as torch can."""
    together = getattr(torch, "_foreach_copy_", None)
    if together is not None:
        together(copies, sources)
        return
    for copy, source in zip(copies, sources, strict=True):
        copy.copy_(source)


# The methods in which a thread starts a DataLoader, or waits for a batch. None of them if the private class is another
# one: data loading is then not seen.
_BATCHES: Final[Any] = getattr(_dataloader, "_BaseDataLoaderIter", object)
LOADER_METHODS: Final[tuple[tuple[type, str], ...]] = (
    ((DataLoader, "__iter__"), (_BATCHES, "__next__"))
    if "__iter__" in vars(DataLoader) and "__next__" in vars(_BATCHES)
    else ()
)
# In which it asks the sampler for the next batch: with worker processes, long before that batch is returned.
LOADER_INDEX: Final[tuple[tuple[type, str], ...]] = (
    ((_BATCHES, "_next_index"),) if LOADER_METHODS and "_next_index" in vars(_BATCHES) else ()
)

# Dynamo

# Older releases break the graph where a hook is registered on a tensor inside it. 2.6 and 2.8 were tried; in 2.10, the
# code is the same.
INSIDE_FROM: Final = (2, 13)
SEES_INSIDE: Final = tuple(map(int, torch.__version__.split(".")[:2])) >= INSIDE_FROM


# torch 2.6 can't keep Dynamo out of the frames below one. It compiles the loop that calls our hooks, and breaks there.
SKIPS_BELOW: Final = hasattr(_C._dynamo.eval_frame, "set_code_exec_strategy")


def skip_frames(codes: Iterable[CodeType], all_codes: Callable[[], Iterable[CodeType]]) -> None:
    """Keep Dynamo out of the frames of these codes and of every frame below them.

    If it can't skip the frames below, `all_codes` returns the code of all functions to skip.
    """
    frames = _C._dynamo.eval_frame
    if not SKIPS_BELOW:
        for code in (*codes, *all_codes()):
            frames.skip_code(code)
        return
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    for code in codes:
        frames.set_code_exec_strategy(code, strategy)


def skip_frame(code: CodeType) -> None:
    """Keep Dynamo out of the frame of this code, but not out of those below it."""
    frames = _C._dynamo.eval_frame
    if not SKIPS_BELOW:
        frames.skip_code(code)
        return
    frames.set_code_exec_strategy(
        code, frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    )


def has_graphs(code: CodeType) -> bool:
    """Return whether anything was compiled for this code."""
    frames = _C._dynamo.eval_frame
    if hasattr(frames, "_get_total_cache_entry_count"):
        return bool(frames._get_total_cache_entry_count(code) > 0)
    return bool(frames._debug_get_cache_entry_list(code))  # torch 2.6 has no count


def reset_code(code: CodeType) -> None:
    """Make Dynamo compile this code again at its next call."""
    _C._dynamo.eval_frame.reset_code(code)


# The joint graph of a forward and a backward pass, before AOTAutograd splits it.


def joint_settings() -> Any | None:
    """Return torch's settings that name what sees a joint graph; None if this release has no such setting."""
    try:
        from torch._functorch import config
    except ImportError:
        return None
    return config if all(hasattr(config, name) for name in ("joint_custom_pass", "enable_autograd_cache")) else None


def kept_nodes(function: Any) -> list[Any] | None:
    """Return the nodes whose tensors a compiled function keeps for its backward pass, in order; None if unknown.

    They are unknown if the function came from torch's cache, or if its backward pass was compiled at once. If tensors
    of a class of their own go in or out, such as a DTensor, the graph has their parts, which are left out.
    """
    graph = getattr(getattr(function, "_lazy_backward_info", None), "bw_module", None)
    if graph is None or getattr(function, "maybe_subclass_metadata", None) is not None:
        return None
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [
        node
        for node in given
        if isinstance(node.meta.get("val"), Tensor) and not str(node.target).startswith("tangents")
    ]


def is_compiled_function(node: Any) -> bool:
    """Return whether a node of the autograd graph is the backward pass of a compiled function."""
    return hasattr(function_of(node), "_lazy_backward_info")


def is_forward(node: Any) -> bool:
    """Return whether a node of a joint graph belongs to the forward pass, as far as torch says so."""
    return bool(node.op == "call_function" and node.meta.get("partitioner_tag") == "is_forward")


def calls_around(node: Any) -> dict[str, tuple[str, Any]]:
    """Return the calls of modules that a node of a forward pass belongs to, from the outermost one, with their paths.

    The keys are the identities of the modules, with a number from the second call on.
    """
    calls: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {} if is_forward(node) else {}
    return calls
