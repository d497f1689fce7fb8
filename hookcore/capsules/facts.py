"""A replay's facts about tensors and lines of source code: plain data, ready for JSON."""

from __future__ import annotations

import hashlib
import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor

import hookcore
from hookcore.reading.answers import SourceLine, TensorFacts

MAX_ELEMENTS: Final = 8
CONTEXT: Final = 2  # lines before and after the one that is shown
_HOOKCORE: Final = f"{Path(hookcore.__file__).parent}/"
_DEMO: Final = f"{_HOOKCORE}commands/demo/"  # whose model stands for the user's
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
    return tuple(reversed([_line(*each) for each in _frames(until) if _is_the_users(each[0])]))


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
        file, number, function, tuple(each.rstrip() for each in lines[first - 1 : number + CONTEXT]), first
    )
