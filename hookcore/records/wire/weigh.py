"""The memory that a msgpack message takes once decoded, estimated without decoding it."""

from __future__ import annotations

from typing import Final

from hookcore.errors import WireError

MAX_TEXT_BYTES: Final = 2**16  # of one string
_ITEM: Final = 80  # bytes of an object and its slot in a list
_PAIR: Final = 100  # of a field, or of a key and its value
_TEXT: Final = 4  # maximum bytes of a character


def _whole_sizes() -> list[int]:
    """Return the size of an item by its first byte, if that determines it; 0 otherwise."""
    sizes = [0] * 256
    for first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        sizes[first] = 1
    for first in range(0xA0, 0xC0):
        sizes[first] = 1 + (first & 31)
    for first, size in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        sizes[first] = 1 + size
    for power in range(4):
        sizes[0xD0 + power] = 1 + 2**power
    return sizes


# first byte: number of length bytes that follow, and the kind of item
_LENGTHS: Final = {
    **{0xC4 + place: (2**place, "bytes") for place in range(3)},
    **{0xD9 + place: (2**place, "text") for place in range(3)},
    **{0xDC + place: (2 << place, "array") for place in range(2)},
    **{0xDE + place: (2 << place, "map") for place in range(2)},
}
_WHOLE: Final = _whole_sizes()


def weigh(data: bytes | bytearray, most: int) -> int:
    """Return the approximate size of a decoded message in bytes, erring on the high side.

    Raises WireError as soon as the size exceeds `most`, or if the message is damaged. Reading stops at the first list
    that is too long, so a hostile message costs less than an honest one.
    """
    position, left, weight, end = 0, 1, _ITEM, len(data)
    while left:
        if position >= end:
            break
        first = data[position]
        left -= 1
        if size := _WHOLE[first]:
            position += size
            continue
        kind, length, position = _head_of(data, first, position)
        if kind in ("array", "map"):
            left += length * (2 if kind == "map" else 1)
            weight += length * (_PAIR if kind == "map" else _ITEM)
        else:
            position += length
            weight += length * (_TEXT if kind == "text" else 1)
            if kind == "text" and length > MAX_TEXT_BYTES:
                raise WireError(f"the message has a string of {length} bytes; the limit is {MAX_TEXT_BYTES}")
        if weight > most:
            raise WireError(f"the message exceeds {most} bytes of memory once decoded: split it")
    if left or position > end:
        raise WireError("the message is truncated: it ends in the middle of a value")
    return weight


def _head_of(data: bytes | bytearray, first: int, position: int) -> tuple[str, int, int]:
    """Return the kind of an item with a length, its length, and the position of its content."""
    if 0x80 <= first < 0xA0:
        return "map" if first < 0x90 else "array", first & 15, position + 1
    if first not in _LENGTHS:
        raise WireError(f"the message has a value of msgpack type {first:#04x}, which hookcore does not use")
    size, kind = _LENGTHS[first]
    begin = position + 1
    return kind, int.from_bytes(data[begin : begin + size], "big"), begin + size
