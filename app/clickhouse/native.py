"""ClickHouse's format Native: blocks of columns, which are arrays here. Pure, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records.sketch import flaw_of

_NUMBERS: Final = {
    "UInt8": "<u1",
    "UInt16": "<u2",
    "UInt32": "<u4",
    "UInt64": "<u8",
    "Int32": "<i4",
    "Int64": "<i8",
    "Float32": "<f4",
    "Float64": "<f8",
    "Date": "<u2",
    "DateTime": "<u4",
    "Bool": "<u1",
}
_ARRAY: Final = "Array("


class FormatError(HookcoreError):
    """An answer that isn't in this format, or is cut off."""


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A column of arrays: row i has values[starts[i]:starts[i + 1]]."""

    starts: NDArray[np.int64]  # one more than there are rows
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.starts) - 1


Column = NDArray[Any] | Lists | Sequence[bytes]  # of numbers, of arrays of numbers, or of texts


class Answer:
    """The columns of an answer. One without rows may lack its columns, which are then empty."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns

    def numbers(self, name: str) -> NDArray[Any]:
        return np.asarray(self._columns.get(name, ()))

    def texts(self, name: str) -> list[bytes]:
        column = self._columns.get(name, ())
        return [] if isinstance(column, Lists) else list(column)

    def lists(self, name: str) -> Lists:
        column = self._columns.get(name)
        return column if isinstance(column, Lists) else Lists(np.zeros(1, np.int64), np.empty(0, np.int64))

    def histograms(self) -> tuple[Lists, NDArray[Any]]:
        """Return the bins of each row, and their counts at the same places. Raises FormatError if they don't match."""
        bins, counts = self.lists("bins"), self.lists("counts")
        flaw = flaw_of(bins.starts, bins.values)
        if len(unlike := np.flatnonzero(bins.starts != counts.starts)):
            row = unlike[0] - 1
            many, others = (each.starts[row + 1] - each.starts[row] for each in (bins, counts))
            flaw = f"{many} bins and {others} counts"
        if flaw is not None:
            words = "its row was damaged, or comes from another program"
            raise FormatError(f"ClickHouse returned a histogram with {flaw}: {words}")
        return bins, counts.values

    def one(self, name: str) -> int:
        """Return the number in the only row, or 0."""
        return int(next(iter(self.numbers(name)), 0))


def encode(columns: Mapping[str, tuple[str, Column]]) -> bytes:
    """Return a block of columns, given by name as type and values."""
    rows = len(next(iter(columns.values()))[1])
    parts = [_varint(len(columns)), _varint(rows)]
    for name, (kind, values) in columns.items():
        parts += [_text(name.encode()), _text(kind.encode())]
        if rows:
            parts += _values(kind, values)
    return b"".join(parts)


def _values(kind: str, values: Column) -> list[bytes]:
    if isinstance(values, Lists):
        inner = kind[len(_ARRAY) : -1]
        return [values.starts[1:].astype("<u8").tobytes(), values.values.astype(_NUMBERS[inner], copy=False).tobytes()]
    if kind == "String":
        return list(map(_text, values))
    return [np.ascontiguousarray(values, _NUMBERS[kind]).tobytes()]


def _text(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode(data: bytes) -> Answer:
    """Return the columns of all blocks of an answer. Raises FormatError if it isn't in this format."""
    blocks, position = [], 0
    try:
        while position < len(data):
            block, position = _block(data, position)
            blocks.append(block)
    except (IndexError, ValueError, KeyError) as error:
        raise FormatError(f"the answer of ClickHouse can't be read at byte {position}: {error}") from None
    filled = [block for block in blocks if block and len(next(iter(block.values())))] or blocks[:1]
    return Answer({name: join([block[name] for block in filled]) for name in (filled[0] if filled else ())})


def _block(data: bytes, position: int) -> tuple[dict[str, Column], int]:
    number, position = _read_varint(data, position)
    rows, position = _read_varint(data, position)
    columns: dict[str, Column] = {}
    for _ in range(number):
        name, position = _read_text(data, position)
        kind, position = _read_text(data, position)
        columns[name.decode()], position = _read_values(kind.decode(), data, position, rows)
    return columns, position


def _read_values(kind: str, data: bytes, position: int, rows: int) -> tuple[Column, int]:
    if kind == "String":
        texts = []
        for _ in range(rows):
            text, position = _read_text(data, position)
            texts.append(text)
        return texts, position
    if kind.startswith(_ARRAY):
        ends, position = _read_numbers("UInt64", data, position, rows)
        starts = np.zeros(rows + 1, np.int64)
        starts[1:] = ends
        if (starts[1:] < starts[:-1]).any():
            raise ValueError("arrays that end before they begin")
        values, position = _read_numbers(kind[len(_ARRAY) : -1], data, position, int(starts[-1]))
        return Lists(starts, values), position
    return _read_numbers(kind, data, position, rows)


def _read_numbers(kind: str, data: bytes, position: int, count: int) -> tuple[NDArray[Any], int]:
    dtype = np.dtype(_NUMBERS[kind])
    return np.frombuffer(data, dtype, count, position), position + count * dtype.itemsize


def _read_text(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = _read_varint(data, position)
    end = position + length
    if end > len(data):
        raise ValueError(f"a string of {length} bytes is cut off")
    return data[position:end], end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


def join(parts: list[Column]) -> Column:
    """Return the values of several parts of a column, one after the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Lists):
        lists = [part for part in parts if isinstance(part, Lists)]
        begins = np.cumsum([0, *(len(part.values) for part in lists)])
        starts = [part.starts[1:] + begin for part, begin in zip(lists, begins, strict=False)]
        values = np.concatenate([part.values for part in lists])
        return Lists(np.concatenate([np.zeros(1, np.int64), *starts]), values)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    return [text for part in parts if not isinstance(part, Lists) for text in part]
