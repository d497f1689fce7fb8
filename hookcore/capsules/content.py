"""A capsule: the step for a replay, a description for people, and the file of both."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import linecache
import os
import pickle
import re
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, Final, cast

import torch
from torch import Tensor, nn

import hookcore
from hookcore import hooks
from hookcore.capsules.calls import Call, bits_of, compact, versions
from hookcore.delivery.dashboard.capsules import ABOUT, FORMAT, FRAMES, opened
from hookcore.delivery.dashboard.private import whole_file
from hookcore.errors import CapsuleError, WireError
from hookcore.hooks.internals import tree_map
from hookcore.reading.answers import SourceLine, TensorFacts
from hookcore.records import Frame, SketchBlock, Tap, wire
from hookcore.store import Store

# The file of a capsule: a ZIP archive with a readable description and the pickled step.

WARNING: Final = "Opening this capsule runs code from it: it contains pickles. Replay only capsules that you trust."
_STEP: Final = "step.pt"
_MAIN: Final = b"__main__"


class _Limited(io.RawIOBase):
    """A stream that refuses more bytes than a limit."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        super().__init__()
        self._stream, self._left, self._max = stream, max_bytes, max_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise CapsuleError(f"the step takes more than max_bytes={self._max:,}: give a higher limit")
        return self._stream.write(data)


class _Substitutes:
    """Python's pickle with other tensors in place of some, given by id."""

    __name__ = "pickle"

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        class Substituting(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                other = tensors.get(id(value))
                if other is None:
                    return NotImplemented
                return other.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]

        self.Pickler = Substituting  # torch makes its own class of it


def write_capsule(
    path: Path,
    about: dict[str, Any],
    step: dict[str, Any],
    max_bytes: int,
    frames: bytes | None = None,
    weights: Mapping[int, Tensor] | None = None,
) -> int:
    """Write a capsule and return its size. The file appears whole or not at all.

    `weights` replace tensors of the model, given by id: those that it had when the step began.
    """
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=2))
        if frames is not None:
            archive.writestr(FRAMES, frames, zipfile.ZIP_DEFLATED, compresslevel=1)
        with archive.open(_STEP, "w", force_zip64=True) as stream:
            pickles = _Substitutes(weights) if weights else pickle
            torch.save(step, cast(IO[bytes], _Limited(stream, max_bytes)), pickles)
    return path.stat().st_size


def needs_main(path: str | os.PathLike[str]) -> bool:
    """Return whether the step refers to what the main script defines."""
    with opened(path) as archive, archive.open(_STEP) as file, zipfile.ZipFile(file) as step:
        return any(_MAIN in step.read(name) for name in step.namelist() if name.endswith("data.pkl"))


def read_step(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the step. This runs code from the capsule."""
    device = None if torch.cuda.is_available() else "cpu"
    with opened(path) as archive, archive.open(_STEP) as file:
        step: dict[str, Any] = torch.load(file, map_location=device, weights_only=False)
    return step


# A replay's facts about tensors and lines of source code: plain data, ready for JSON.

MAX_ELEMENTS: Final = 8
CONTEXT: Final = 2  # lines before and after the one that is shown
_HOOKCORE: Final = f"{Path(hookcore.__file__).parent}/"
_DEMO: Final = f"{_HOOKCORE}commands/demo.py"  # whose model stands for the user's
_NOT_THE_USERS: Final = ("<frozen", f"{Path(torch.__file__).parent}/")
_FRAME: Final = re.compile(r'\s*File "(.+)", line (\d+), in (.+)')


def is_numeric(tensor: Any) -> bool:
    """Return whether this is a tensor whose values can be infinite."""
    return isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex())


def bad_elements(tensor: Tensor, above: float | None) -> Tensor:
    """Return which elements are non-finite, or above the threshold."""
    wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()
    good = torch.isfinite(wide)
    return ~good if above is None else ~good | (wide.abs() > above)


def facts_of(name: str, tensor: Tensor, elements: Iterable[tuple[int, ...]] = (), shape: Any = None) -> TensorFacts:
    """Return the facts of a tensor, and its values at these elements of a tensor of this shape."""
    plain = tensor.detach()
    wide = plain.abs().double() if plain.is_complex() else plain.double()
    finite = wide[torch.isfinite(wide)]
    some = bool(finite.numel())
    return TensorFacts(
        name=name,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        nan=int(torch.isnan(wide).sum()),
        inf=int(torch.isinf(wide).sum()),
        min=float(finite.min()) if some else None,
        max=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        values=_values(plain, elements, tuple(tensor.shape if shape is None else shape)),
    )


def _values(tensor: Tensor, elements: Iterable[tuple[int, ...]], shape: tuple[int, ...]) -> tuple[str, ...]:
    try:
        full = tensor.expand(shape)
    except RuntimeError:  # the operator doesn't work element by element
        return ()
    return tuple(f"{full[at].item():.6g}" for at in elements)


def digest_of(tensor: Tensor) -> str:
    """Return a digest of a tensor's values, exact to the bit."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    plain = dense.resolve_conj().resolve_neg().contiguous().reshape(-1).cpu()
    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.sha256(head + plain.view(torch.uint8).numpy().tobytes()).hexdigest()


def running_lines(until: CodeType) -> tuple[SourceLine, ...]:
    """Return the user's running lines, innermost last, up to the frame of this code."""
    return tuple(reversed([_line(*frame) for frame in _frames(until) if _is_the_users(frame[0])]))


def _frames(until: CodeType) -> Iterator[tuple[str, int, str]]:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not until:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        if frame.f_back is None:
            return
        frame = frame.f_back


def lines_of(trace: Iterable[str]) -> tuple[SourceLine, ...]:
    """Return the user's lines of a formatted stack: those inside of the replay."""
    frames = [(match[1], int(match[2]), match[3]) for match in map(_FRAME.match, trace) if match]
    inside = max((place + 1 for place, frame in enumerate(frames) if _is_ours(frame[0])), default=0)
    return tuple(_line(*each) for each in frames[inside:] if _is_the_users(each[0]))


def _is_the_users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS) and not _is_ours(file)


def _is_ours(file: str) -> bool:
    return file.startswith(_HOOKCORE) and not file.startswith(_DEMO)


def _line(file: str, number: int, function: str) -> SourceLine:
    lines = linecache.getlines(file)
    first = max(1, number - CONTEXT)
    return SourceLine(
        file, number, function, tuple(line.rstrip() for line in lines[first - 1 : number + CONTEXT]), first
    )


# The main script of a training, so that a replay finds the classes that it defines.

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
        if not all(isinstance(part, _IN_BLOCKS) for part in parts if isinstance(part, ast.stmt)):
            return False
    elif not isinstance(statement, ast.Assign | ast.AnnAssign):
        return isinstance(statement, _DEFINITIONS)
    return not any(isinstance(part, ast.Call | ast.Await | ast.Yield) for part in parts)


def _stop(*_: Any) -> None:
    raise _TrainingBegan


# The contents of a capsule: the step for a replay, and a description for people.


def step_of(model: nn.Module, call: Call, constructor: str = "") -> dict[str, Any]:
    """Return everything that a replay needs."""
    current = dict(model.named_buffers())
    changed = [
        name
        for name, buffer in call.buffers.items()
        if name in current and not torch.equal(bits_of(buffer), bits_of(current[name]))
    ]
    whole = {"model": model} if not constructor else {"state_dict": model.state_dict()}
    return {
        **whole,
        "constructor": constructor,
        "args": tree_map(compact, call.args),
        "kwargs": tree_map(compact, call.kwargs),
        "training": call.training,
        "buffers": {name: call.buffers[name] for name in changed},
        "numbers": call.numbers,
        "generators": call.generators,
        "autocast": call.autocast,
        "grad_enabled": call.grad_enabled,
        "outputs": {place: digest_of(tensor) for place, tensor in call.outputs.items()},
        "gradients": {place: compact(tensor) for place, tensor in call.gradients.items()},
    }


def about(model: nn.Module, call: Call, reason: str, step: int) -> dict[str, Any]:
    """Return the description, which can be read without running code from the capsule."""
    return {
        "format": FORMAT,
        "warning": WARNING,
        "reason": reason,
        "step": step,
        "time_s": time.time(),
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "weights": "after the update" if call.updated else "before the update",
        "changed": call.changed(),
        "unkept": call.unkept,
        "notes": call.notes,
        "versions": versions(),
        "main": describe_main(),
    }


# The newest captured steps before a saved one, which a capsule contains as numbers.

MAX_STEPS: Final = 50
MAX_BYTES: Final = 16 << 20  # fewer steps are kept if they take more
_RUN: Final = wire.RunInfo(id="capsule", key="", name="")
_STORE_BYTES: Final = 256 << 20


@dataclass(slots=True)
class RecentFrames:
    """The newest steps of a run without their histograms. One thread adds, another one reads."""

    _steps: deque[list[Frame]] = field(default_factory=deque)  # the parts of each step
    taps: list[Tap] = field(default_factory=list)
    nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, frame: Frame, keep: bool = True) -> None:
        """Keep a frame, and drop the oldest ones to make room. Otherwise, only learn the names of its taps."""
        with self._lock:
            self.taps += frame.new_taps
            if not keep:
                self._steps.clear()
                self.nbytes = 0
                return
            if not self._steps or self._steps[-1][0].step != frame.step:
                self._steps.append([])
            self._steps[-1].append(_outline(frame))
            self.nbytes += frame.stats.nbytes
            while len(self._steps) > MAX_STEPS or self.nbytes > MAX_BYTES:
                self.nbytes -= sum(each.stats.nbytes for each in self._steps.popleft())

    def steps(self, last: int) -> list[int]:
        """Return the kept steps up to this one, oldest first."""
        with self._lock:
            return [parts[0].step for parts in self._steps if parts[0].step <= last]

    def packed(self, last: int) -> bytes:
        """Return the kept steps up to this one as a message."""
        with self._lock:
            frames = [frame for parts in self._steps for frame in parts if frame.step <= last]
            known = tuple(self.taps)
        items = tuple(wire.frame_item(number, frame) for number, frame in enumerate(frames))
        return wire.encode(wire.Batch(run=_RUN, taps=known, items=items))


def read_frames(path: str | os.PathLike[str]) -> Store:
    """Return a store with the steps before the saved one: all scalars, and captured tensors without their histograms.

    Runs no code of the capsule.
    """
    with opened(path) as archive:
        if FRAMES not in archive.namelist():
            raise CapsuleError(f"{path} has no earlier steps: only hookcore.watch saves them, if capsule isn't 'never'")
        try:
            batch = wire.decode_batch(archive.read(FRAMES))
            store, taps = Store(_STORE_BYTES), batch.taps
            for item in batch.items:
                if isinstance(item, wire.FrameItem):
                    store.append(wire.frame_of(item, taps))
                    taps = ()
        except WireError as error:
            raise CapsuleError(f"the earlier steps in {path} can't be read: {error}") from None
    return store


def _outline(frame: Frame) -> Frame:
    return replace(frame, sketches=SketchBlock.empty(len(frame.taps)), new_taps=(), events=())
