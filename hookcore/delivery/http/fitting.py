"""Shortens strings that exceed the server's limits, so that one odd name doesn't get a whole batch rejected."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Tap, plain
from hookcore.records.flow import Flow, TensorForm
from hookcore.records.wire import MAX_TEXT

MAX_LONG_TEXT: Final = 16_000  # characters of a message, which may contain a traceback
MAX_SETTING: Final = 4_000  # characters of one setting
_LONG_TEXTS: Final = frozenset({"message", "reason", "function", "where", "warning", "source"})

Record = TypeVar("Record", Tap, Event, ModuleRecord, Coverage, HookRecord)


def cut(text: str, longest: int = MAX_TEXT) -> str:
    """Return the text, or its beginning and a hash of the rest, so that two long names stay distinct."""
    if len(text) <= longest:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[: longest - 14]}~{mark}"


def fitted(record: Record) -> Record:
    """Return the record with shortened strings; most are returned unchanged."""
    changes: dict[str, Any] = {}
    for each in fields(record):
        value = getattr(record, each.name)
        longest = MAX_LONG_TEXT if each.name in _LONG_TEXTS else MAX_TEXT
        if isinstance(value, str):
            if len(value) > longest:
                changes[each.name] = cut(value, longest)
        elif isinstance(value, tuple) and any(len(text) > longest for text in value):
            changes[each.name] = tuple(cut(text, longest) for text in value)
    return replace(record, **changes) if changes else record


def fitted_frame(frame: Frame) -> Frame:
    """Return the frame with shortened strings; its new taps are not checked."""
    has_texts = frame.events or frame.labels or frame.flow is not None
    if all(len(name) <= MAX_TEXT for name in frame.scalars) and not has_texts:
        return frame
    return replace(
        frame,
        events=tuple(map(fitted, frame.events)),
        scalars={cut(name): value for name, value in frame.scalars.items()},
        labels={cut(name): cut(text) for name, text in frame.labels.items()},
        flow=None if frame.flow is None else _fitted_flow(frame.flow),
    )


def _fitted_flow(flow: Flow) -> Flow:
    calls, sizes = flow.calls, flow.sizes
    if any(len(each.module) > MAX_TEXT for each in calls):
        calls = tuple(replace(each, module=cut(each.module)) for each in calls)
    if any(len(form.place) > MAX_TEXT for each in sizes for form in (*each.inputs, *each.outputs)):
        sizes = tuple(replace(each, inputs=_cut(each.inputs), outputs=_cut(each.outputs)) for each in sizes)
    return replace(flow, calls=calls, sizes=sizes)


def _cut(forms: tuple[TensorForm, ...]) -> tuple[TensorForm, ...]:
    return tuple(replace(each, place=cut(each.place)) for each in forms)


def fitted_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with very long lists abbreviated."""
    texts = {name: repr(value) for name, value in settings.items()}
    short = {name: value for name, value in plain(settings).items() if len(texts[name]) <= MAX_SETTING}
    return {name: short[name] if name in short else cut(texts[name]) for name in settings}
