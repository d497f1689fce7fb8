"""The tensors in a file or a folder: safetensors, checkpoints of torch, and distributed ones.

Safetensors are read by their own simple format, one tensor after the other and without torch. Checkpoints of torch are
read by torch, with `weights_only`: no code of a file is ever run.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.observe import cpu
from hookcore.records import Tap, Value
from hookcore.records.vocabulary import counted

MAX_HEADER: Final = 100_000_000  # bytes, as in the format's own reader
SHOWN: Final = 20
INDEX: Final = ".index.json"


# Types, by their names in safetensors: torch's name, how NumPy reads them, and the kernel's code. Without a code, a
# function makes float32 of them.


def _float8(exponent_bits: int, mantissa_bits: int, bias: int, has_infinity: bool) -> NDArray[np.float32]:
    """Return the values of all 256 codes."""
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    share = mantissa / 2.0**mantissa_bits
    values = np.where(exponent == 0, share * 2.0 ** (1 - bias), (1 + share) * 2.0 ** (exponent - bias))
    if has_infinity:
        top = exponent == 2**exponent_bits - 1
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values[-1] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Type:
    """How the bytes of a type are read."""

    name: str  # torch's
    stored: str  # NumPy's
    code: int = cpu.FLOAT32  # of the values that the kernel gets
    convert: Callable[[NDArray[Any]], NDArray[Any]] | None = None

    def measurable(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the values in the type of the kernel's code."""
        return stored if self.convert is None else self.convert(stored)

    def numbers(self, stored: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values as float64, which holds all but the largest integers exactly."""
        values = self.measurable(stored)
        if self.code == cpu.BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):  # signaling NaNs
            return (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)


def _by_table(table: NDArray[np.float32]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda stored: table[stored]


def _scales(stored: NDArray[Any]) -> NDArray[Any]:
    return np.where(stored == 255, np.nan, np.ldexp(1.0, stored.astype(int) - 127)).astype(np.float32)


TYPES: Final[dict[str, Type]] = {
    "F64": Type("float64", "<f8", cpu.FLOAT64),
    "F32": Type("float32", "<f4"),
    "F16": Type("float16", "<f2", cpu.FLOAT16),
    "BF16": Type("bfloat16", "<u2", cpu.BFLOAT16),
    "F8_E4M3": Type("float8_e4m3fn", "u1", convert=_by_table(_float8(4, 3, 7, has_infinity=False))),
    "F8_E5M2": Type("float8_e5m2", "u1", convert=_by_table(_float8(5, 2, 15, has_infinity=True))),
    "F8_E8M0": Type("float8_e8m0fnu", "u1", convert=_scales),
    "I64": Type("int64", "<i8", cpu.INT64),
    "I32": Type("int32", "<i4", cpu.INT32),
    "I16": Type("int16", "<i2", cpu.INT16),
    "I8": Type("int8", "i1", cpu.INT8),
    "U8": Type("uint8", "u1", cpu.UINT8),
    "U16": Type("uint16", "<u2", cpu.INT32, lambda stored: stored.astype(np.int32)),
    "U32": Type("uint32", "<u4", cpu.INT64, lambda stored: stored.astype(np.int64)),
    "U64": Type("uint64", "<u8", cpu.FLOAT64, lambda stored: stored.astype(np.float64)),
    "BOOL": Type("bool", "u1", cpu.BOOL),
    "C64": Type("complex64", "<c8", cpu.COMPLEX64),
    "C128": Type("complex128", "<c16", cpu.COMPLEX128),
}
_BY_NAME: Final = {each.name: each for each in TYPES.values()}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a file. `read` returns its stored values in one row, when they are needed."""

    name: str
    type: Type
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    @property
    def module(self) -> str:
        """The module that it is a part of, by its name."""
        return self.name.rpartition(".")[0]

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of its matrix, which has the first axis as rows; zeros if it isn't one."""
        sides = (self.shape[0], math.prod(self.shape[1:])) if len(self.shape) > 1 else (0, 0)
        return sides if min(sides) > 1 else (0, 0)

    @property
    def tap(self) -> Tap:
        """The tap that has its statistics."""
        return Tap(self.module, "param", self.name.rpartition(".")[2])


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a file or a folder, and those that can't be read, with the reasons."""

    path: Path
    format: str
    tensors: Mapping[str, Weight]
    unread: Mapping[str, str]
    facts: Mapping[str, Value]


def read_weights(path: Path) -> Weights:
    """Open the weights in a file or a folder. Raises ArgumentError if it has none."""
    if not path.exists():
        raise ArgumentError(f"{str(path)!r} doesn't exist: give a file of safetensors or of torch, or a folder of them")
    if path.is_dir():
        return _read_folder(path)
    if path.name.endswith(INDEX):
        return _read_index(path)
    with path.open("rb") as file:
        start = file.read(9)
    if path.suffix == ".safetensors" or (len(start) == 9 and start[8:] == b"{" and start[:2] != b"PK"):
        return _joined(path, "safetensors", [path])
    return _read_torch(path)


def _read_folder(folder: Path) -> Weights:
    indexes = sorted(folder.glob(f"*{INDEX}"))
    if indexes:
        return _read_index(indexes[0])
    if (folder / ".metadata").is_file():
        return _read_dcp(folder)
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return _joined(folder, "safetensors", files)
    found = sorted(each for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for each in folder.glob(pattern))
    if len(found) == 1:
        return _read_torch(found[0])
    names = f": give one of {', '.join(each.name for each in found[:SHOWN])}" if found else ""
    raise ArgumentError(
        f"{str(folder)!r} has no *{INDEX}, no *.safetensors, no .metadata of a distributed checkpoint, and "
        f"{len(found)} files of torch{names}"
    )


def _read_index(path: Path) -> Weights:
    """Open all shards that an index names. What a missing one had is named, too."""
    try:
        places = json.loads(path.read_bytes())["weight_map"]
        files = sorted({Path(str(place)).name for place in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{str(path)!r} is no index of shards: {error!r}. It needs a `weight_map`") from None
    there = [path.parent / name for name in files if (path.parent / name).is_file()]
    gone = {name: f"{place} is missing" for name, place in places.items() if not (path.parent / str(place)).is_file()}
    if not there:
        raise ArgumentError(
            f"none of the {counted(len(files), 'shard')} of {str(path)!r} is there, such as {files[:1]}"
        )
    if all(each.suffix == ".safetensors" for each in there):
        read = _joined(path, "safetensors", there)
    else:
        parts = [_read_torch(each) for each in there]
        tensors = {name: each for part in parts for name, each in part.tensors.items()}
        read = Weights(path, "torch", tensors, {n: why for part in parts for n, why in part.unread.items()}, {})
    lacking = {name: f"{place} doesn't have it" for name, place in places.items() if name not in read.tensors}
    return replace(read, unread={**lacking, **gone, **read.unread})


# Safetensors: the length of the header, the header as JSON, the values.


def _joined(path: Path, kind: str, files: Sequence[Path]) -> Weights:
    tensors: dict[str, Weight] = {}
    unread: dict[str, str] = {}
    facts: dict[str, Value] = {}
    for file in files:
        header, start, content = _open_safetensors(file)
        metadata = header.pop("__metadata__", {})
        facts |= {f"metadata.{name}": str(text)[:200] for name, text in list(metadata.items())[:50]}
        for name, about in header.items():
            found = _weight_in(name, about, start, content)
            if isinstance(found, Weight):
                tensors[name] = found
            else:
                unread[name] = found
    return Weights(path, kind, tensors, unread, facts)


def _open_safetensors(path: Path) -> tuple[dict[str, Any], int, mmap.mmap]:
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 or length > min(MAX_HEADER, len(content) - 8):
            raise ValueError(f"its header would have {length:,} of {len(content):,} bytes")
        header = json.loads(content[8 : 8 + length])
        if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
            raise ValueError("its header is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{str(path)!r} can't be read as safetensors: {error}") from None
    return header, 8 + length, content


def _weight_in(name: str, about: Any, start: int, content: mmap.mmap) -> Weight | str:
    """Return a tensor of the header, or why it can't be read."""
    try:
        kind, shape, (first, last) = about["dtype"], tuple(map(int, about["shape"])), about["data_offsets"]
    except (KeyError, TypeError, ValueError):
        return "its entry in the header is damaged"
    known = TYPES.get(kind)
    if known is None:
        return f"values of type {str(kind)[:40]} can't be read"
    size = math.prod(shape)
    nbytes = size * np.dtype(known.stored).itemsize
    if min(shape, default=0) < 0 or not 0 <= first <= last <= len(content) - start or last - first != nbytes:
        return f"its {nbytes:,} bytes are not in the file, which is cut off or damaged"
    return Weight(name, known, shape, lambda: np.frombuffer(content, known.stored, size, start + first))


# Torch's checkpoints, and folders of `torch.distributed.checkpoint`.


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ArgumentError(f"a checkpoint of torch is read by torch, which can't be imported ({error})") from None


def _read_torch(path: Path) -> Weights:
    torch = _torch()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:
        raise ArgumentError(
            f"{str(path)!r} can't be read with weights_only, which runs no code of a file: {_first_line(error)}"
        ) from None
    tensors: dict[str, Weight] = {}
    unread: dict[str, str] = {}
    others = Counter[str]()
    for name, value in _leaves("", content, torch):
        if not isinstance(value, torch.Tensor):
            others[type(value).__name__] += 1
            continue
        found = _weight_of(name, value, torch)
        if isinstance(found, Weight):
            tensors[name] = found
        else:
            unread[name] = found
    kinds = ", ".join(f"{many:,} {name}" for name, many in others.most_common(5))
    return Weights(path, "torch", tensors, unread, {"other values": kinds} if kinds else {})


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _leaves(name: str, value: Any, torch: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    inside: Any = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else None
    )
    if inside is None or depth > 20:
        yield name, value
        return
    for key, each in inside:
        yield from _leaves(f"{name}.{key}" if name else str(key), each, torch, depth + 1)


def _weight_of(name: str, tensor: Any, torch: Any) -> Weight | str:
    known = _BY_NAME.get(str(tensor.dtype).removeprefix("torch."))
    if tensor.is_quantized or tensor.layout is not torch.strided:
        return f"a {'quantized' if tensor.is_quantized else tensor.layout} tensor can't be read"
    if known is None or tensor.is_meta:
        return f"values of type {tensor.dtype}{' without data' if tensor.is_meta else ''} can't be read"
    stored = np.dtype(known.stored)

    def read() -> NDArray[Any]:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().view(stored) if flat.numel() else np.empty(0, stored)

    return Weight(name, known, tuple(tensor.shape), read)


class _Described(pickle.Unpickler):
    """Reads the description of a distributed checkpoint, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.distributed.checkpoint.metadata" or (module, name) in _HARMLESS:
            return super().find_class(module, name)
        if module == "torch.distributed.checkpoint.filesystem" and name == "_StorageInfo":
            return super().find_class(module, name)
        if module == "torch" and not name.startswith("_") and type(getattr(_torch(), name, None)).__name__ == "dtype":
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no description needs")


_HARMLESS: Final = {
    *(("torch", "Size"), ("torch.serialization", "_get_layout")),
    *(("collections", "OrderedDict"), ("pathlib", "PosixPath")),
}


def _read_dcp(folder: Path) -> Weights:
    torch = _torch()
    try:
        import_module("torch.distributed.checkpoint")
        about = _Described(io.BytesIO((folder / ".metadata").read_bytes())).load()
        described, stored = about.state_dict_metadata, about.storage_data
    except Exception as error:
        raise ArgumentError(f"{str(folder)!r} has no readable .metadata: {_first_line(error)}") from None
    tensors: dict[str, Weight] = {}
    unread: dict[str, str] = {}
    others = 0
    places: dict[str, list[tuple[Any, Any]]] = {}
    for index, place in stored.items():
        places.setdefault(index.fqn, []).append((index, place))
    for name, each in described.items():
        if not hasattr(each, "chunks"):
            others += 1
            continue
        known = _BY_NAME.get(str(each.properties.dtype).removeprefix("torch."))
        reason = _why_not(folder, each, places.get(name, []))
        if known is None or reason:
            unread[name] = reason or f"values of type {each.properties.dtype} can't be read"
            continue
        whole = _Whole(folder, places[name], tuple(each.size), each.properties.dtype, torch, np.dtype(known.stored))
        tensors[name] = Weight(name, known, tuple(each.size), whole)
    facts: dict[str, Value] = {"other values": f"{others:,}"} if others else {}
    return Weights(folder, "distributed checkpoint", tensors, unread, facts)


def _why_not(folder: Path, described: Any, places: Sequence[tuple[Any, Any]]) -> str:
    if len(places) < len(described.chunks):
        return f"{len(described.chunks) - len(places)} of its {len(described.chunks)} parts are not in the checkpoint"
    gone = sorted({str(at.relative_path) for _, at in places if not (folder / str(at.relative_path)).is_file()})
    if any(getattr(at, "transform_descriptors", None) for _, at in places):
        return "its parts are compressed or transformed"
    return f"{', '.join(gone[:3])} is missing" if gone else ""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor that is put together from its parts when it is read."""

    folder: Path
    places: Sequence[tuple[Any, Any]]
    shape: tuple[int, ...]
    dtype: Any
    torch: Any
    stored: np.dtype[Any]

    def __call__(self) -> NDArray[Any]:
        whole = self.torch.empty(self.shape, dtype=self.dtype)
        for index, at in self.places:
            path = self.folder / str(at.relative_path)
            if path.resolve().parent != self.folder.resolve():
                raise ArgumentError(f"a part of {index.fqn!r} is in {str(path)!r}, outside of the checkpoint")
            with path.open("rb") as file:
                file.seek(at.offset)
                part = self.torch.load(io.BytesIO(file.read(at.length)), map_location="cpu", weights_only=True)
            view = whole
            for axis, (first, size) in enumerate(zip(index.offset or (), part.shape, strict=False)):
                view = view.narrow(axis, first, size)
            view.copy_(part)
        return (
            whole.reshape(-1).view(self.torch.uint8).numpy().view(self.stored)
            if whole.numel()
            else np.empty(0, self.stored)
        )
