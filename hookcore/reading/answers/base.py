"""The basis of all answers: numbers and arrays as JSON writes them, taps, pages, and data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hookcore import records
from hookcore.errors import ServerError
from hookcore.records import Kind, Phase
from hookcore.store import answers
from hookcore.store.answers import library as library

Wanted = TypeVar("Wanted")
AnyTap = TypeVar("AnyTap", bound="Tap")
SCHEMAS: Final = "#/components/schemas/"
NUMBER: Final = {
    "description": "a number, or a string for values that JSON can't represent as a number",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


class Number(float):
    """A float that JSON writes as a word if it is NaN or infinite. mypy refuses a bare float in its place."""

    __slots__ = ()


def _list_of(items: dict[str, Any]) -> Meta:
    return Meta(extra_json_schema={"type": "array", "items": items})


_number, _integer = {"$ref": f"{SCHEMAS}Number"}, {"type": "integer"}
Floats = Annotated[NDArray[np.float64], _list_of(_number)]
Integers = Annotated[NDArray[np.int64], _list_of(_integer)]
FloatMatrix = Annotated[NDArray[np.float64], _list_of({"type": "array", "items": _number})]
IntegerMatrix = Annotated[NDArray[np.int64], _list_of({"type": "array", "items": _integer})]
States = Annotated[NDArray[np.uint8], _list_of({"type": "array", "items": _integer})]
Nested = Annotated[NDArray[Any], Meta(extra_json_schema={"description": "nested lists of numbers"})]


class Answer(msgspec.Struct, frozen=True):
    """Base class of all answers. A reader ignores fields that it doesn't know: a newer server may add some.

    A field that is added to a class later has a default, because an older server doesn't send it.
    """


class Tap(Answer, frozen=True):
    """An observed tensor stream."""

    number: int | None
    module: str
    kind: Kind
    index: str
    call: int
    phase: Phase
    label: Annotated[str, Meta(description="names the tap wherever the API takes one")]

    @classmethod
    def of(cls: type[AnyTap], number: int | None, tap: records.Tap, **more: Any) -> AnyTap:
        return cls(number, tap.module, tap.kind, tap.index, tap.call, tap.phase, tap.label, **more)

    @property
    def name(self) -> str:
        """The label without the kind, such as "encoder [past.1] call 2 (eval)"."""
        return self.record.name

    @property
    def record(self) -> records.Tap:
        """The tap as a store has it, without its number."""
        return records.Tap(self.module, self.kind, self.index, self.call, self.phase)


TapName = int | str | records.Tap | Tap  # a tap by its number, its label, or itself


class Page(Answer, frozen=True):
    """A part of a list: `next` is the `after` of the following part, null at the end."""

    total: int
    next: int | None


class Tabular(answers.Tabular, Answer, frozen=True):
    """An answer that can become a data frame."""


def tap_columns(taps: Sequence[Tap]) -> dict[str, Any]:
    """Return a column for each part of the taps."""
    return answers.tap_columns([tap.number for tap in taps], taps)


def decode(data: bytes, kind: type[Wanted]) -> Wanted:
    """Read an answer from JSON."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode)
    except msgspec.DecodeError as error:
        raise ServerError(
            f"the server's answer is not a {kind.__name__}: {error}. Do client and server have the same version?"
        ) from None


def _decode(kind: Any, value: Any) -> Any:
    if kind is Number:
        return Number(value)
    [element] = get_args(get_args(kind)[1])
    found = np.array(value, None if element is Any else element)
    return found.astype(np.float64) if found.dtype.kind == "U" else found  # numbers, some of them as words


def components(kinds: list[Any]) -> dict[str, Any]:
    """Return the JSON schemas of answers and their parts, by name."""
    template = SCHEMAS + "{name}"
    _, found = msgspec.json.schema_components(kinds, schema_hook=_schema_of, ref_template=template)
    return {"Number": NUMBER, **found}


def _schema_of(kind: Any) -> dict[str, Any]:
    return dict(_number) if kind is Number else {}
