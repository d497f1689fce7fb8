"""Limits for the parts of a batch. The wire checks that a batch is complete; this checks that it is reasonable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from hookcore.errors import WireError
from hookcore.records import Event, Names, Tap, Value
from hookcore.records.vocabulary import MAX_MEDIA_BYTES, is_media
from hookcore.records.wire import (
    LATEST_TIME_S,
    MAX_TEXT,
    Batch,
    DeliveryCounters,
    Description,
    EndItem,
    FrameItem,
    Item,
    Place,
    RunInfo,
    SnapshotItem,
    first_values,
)

MAX_TAPS: Final = 200_000  # of a run
MAX_DESCRIBED: Final = 200_000  # modules, and hooks
MAX_ITEMS: Final = 10_000  # of a batch
MAX_EVENTS: Final = 100_000  # of a frame
MAX_ABOUT: Final = 100  # facts of an event
MAX_SCALARS: Final = 10_000  # of a frame
MAX_LABELS: Final = 100
MAX_VERSIONS: Final = 100
MAX_REASONS: Final = 100
MAX_WORLD: Final = 1_000_000  # ranks
MAX_AXES: Final = 16  # of a device mesh
MAX_LONG_TEXT: Final = 16_384  # a message, or a traceback
MAX_TAGS: Final = 50
MAX_NAMES: Final = 50_000  # of the tokens and samples of a snapshot
MAX_IN_SETTINGS: Final = 5_000  # values
DEEPEST_SETTINGS: Final = 6
VALUES: Final = ("config", "facts")
PATTERNS: Final = frozenset({"include", "exclude", "kinds", "phases"})
LISTS: Final = frozenset({"kinds", "phases"})
NUMBERS: Final = frozenset({"every", "budget"})
WHOLE: Final = 2**53  # the integers that JSON can represent
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check(batch: Batch, has_new_run: bool = True) -> None:
    """Raise WireError if a part of a batch is larger than anything that hookcore sends.

    `has_new_run` says whether its description of the run isn't that of an earlier batch, except for the settings.
    """
    if has_new_run:
        _check_run(batch.run)
    else:
        _check_settings(batch.run.settings)
    _check_counters(batch.counters)
    _require(-1 <= batch.commands_done < WHOLE // 2, f"commands done up to number {batch.commands_done}")
    _require(batch.taps_from >= 0, f"taps from number {batch.taps_from} on")
    _require(
        batch.taps_from + len(batch.taps) <= MAX_TAPS,
        f"{batch.taps_from + len(batch.taps)} taps, and a run may have at most {MAX_TAPS}: watch fewer modules",
    )
    for tap in batch.taps:
        _check_tap(tap)
    if batch.description is not None:
        _check_description(batch.description)
    _require(len(batch.items) <= MAX_ITEMS, f"{len(batch.items)} items: send fewer at once")
    before = -1
    for item in batch.items:
        _require(before < item.number < WHOLE, f"an item {item.number} after item {before}")
        before = item.number
        _check_item(item)


def _check_run(run: RunInfo) -> None:
    _require(_ID.fullmatch(run.id) is not None, "a run id that is not 1 to 64 letters, digits, '-', and '_'")
    _require(bool(run.key), "a run without a key")
    _check_texts((run.key, run.name, run.host, run.process, run.script, run.keep))
    _require(len(run.versions) <= MAX_VERSIONS, f"{len(run.versions)} versions")
    _check_texts((*run.versions, *run.versions.values()))
    _require(0 <= run.pid < WHOLE and 0 <= run.memory < WHOLE, "a process id or memory size that is out of range")
    _require(0 <= run.started_s < LATEST_TIME_S, f"a run that started {run.started_s} s after 1970")
    _check_settings(run.settings)
    for name in (_cut(each) for each in VALUES):
        _require(0 <= getattr(run, name) < WHOLE, f"{name}={getattr(run, name)}")
    _check_tags(run.tags)
    _check_texts((run.group,))
    _check_texts((run.notes,), MAX_LONG_TEXT)
    if run.place is not None:
        _check_place(run.place)


def _check_place(place: Place) -> None:
    _require(_ID.fullmatch(place.job) is not None, "a job id that is not 1 to 64 letters, digits, '-', and '_'")
    _require(
        0 <= place.rank < place.world <= MAX_WORLD, f"rank {place.rank} of {place.world}; a world has 1 to {MAX_WORLD}"
    )
    _require(
        0 <= place.local_rank < MAX_WORLD and 0 <= place.attempt < WHOLE, "a local rank or attempt that is out of range"
    )
    _require(len(place.axes) <= MAX_AXES, f"{len(place.axes)} axes of a device mesh")
    _check_texts((place.device, *place.axes))
    for name, (at, size) in place.axes.items():
        _require(0 <= at < size <= MAX_WORLD, f"coordinate {at} on an axis {name[:80]!r} of {size}")


def _check_tags(tags: tuple[str, ...]) -> None:
    _require(len(tags) <= MAX_TAGS, f"{len(tags)} tags, and at most {MAX_TAGS} are allowed")
    _check_texts(tags)


def shortened(run: RunInfo) -> RunInfo:
    """Return a run's description with a configuration and facts within the limits; what is left out is counted.

    The description goes with each batch, so if it were refused, the whole run would be lost.
    """
    changes: dict[str, Any] = {}
    for name in VALUES:
        given: dict[str, Value] = getattr(run, name)
        kept, _ = first_values({key: value for key, value in given.items() if _is_value(key, value)})
        if len(kept) < len(given):
            changes |= {name: kept, _cut(name): getattr(run, _cut(name)) + len(given) - len(kept)}
    return replace(run, **changes) if changes else run


def _cut(name: str) -> str:
    return f"{name}_cut"


def _is_value(name: str, value: Value) -> bool:
    """Return whether a value can be shown: JSON can say it, and no text of it is too long."""
    texts = (name, value) if isinstance(value, str) else (name,)
    return all(len(text) <= MAX_TEXT for text in texts) and _is_plain(value, 0)


def tamed(run: RunInfo) -> RunInfo:
    """Return a run's description from a file, without invalid parts, so that the run can be shown."""
    fitting = {}
    for name, value in run.settings.items():
        with suppress(WireError):
            _check_settings({name: value})
            fitting[name] = value
    started_s = run.started_s if 0 <= run.started_s < LATEST_TIME_S else 0.0
    checks: tuple[tuple[str, Callable[[Any], None]], ...] = (
        ("tags", _check_tags),
        ("group", lambda text: _check_texts((text,))),
        ("notes", lambda text: _check_texts((text,), MAX_LONG_TEXT)),
    )
    dropped: dict[str, Any] = {}
    for name, check_one in checks:
        try:
            check_one(getattr(run, name))
        except WireError:
            dropped[name] = type(getattr(run, name))()
    return replace(shortened(run), started_s=started_s, settings=fitting, **dropped)


def _check_settings(settings: dict[str, Any]) -> None:
    """Check that settings are plain values, and that those shown on pages have the right types."""
    _require(_is_plain(settings, DEEPEST_SETTINGS), "settings that JSON can't represent, or that are nested too deeply")
    _require(_count(settings) <= MAX_IN_SETTINGS, f"more than {MAX_IN_SETTINGS} values in its settings")
    for name, value in settings.items():
        if name in PATTERNS:
            texts = [value] if name not in LISTS and (isinstance(value, str) or value is None) else value
            fits = isinstance(texts, list) and all(text is None or isinstance(text, str) for text in texts)
            _require(fits, f"{name}={str(value)[:80]} in its settings; a string is expected")
        elif name in NUMBERS:
            fits = value is None or isinstance(value, int | float)
            _require(fits, f"{name}={str(value)[:80]} in its settings; a number is expected")


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, dict) and depth:
        return all(isinstance(key, str) and _is_plain(each, depth - 1) for key, each in value.items())
    if isinstance(value, list) and depth:
        return all(_is_plain(each, depth - 1) for each in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= WHOLE  # not NaN either
    return value is None or isinstance(value, str | bool)


def _check_counters(counters: DeliveryCounters) -> None:
    _require(len(counters.dropped) <= MAX_REASONS, f"{len(counters.dropped)} reasons for dropped data")
    _check_texts(counters.dropped)
    sent = counters.produced, counters.acknowledged, counters.waiting, counters.in_flight
    _require(
        all(0 <= number < WHOLE for number in (*sent, *counters.dropped.values())),
        "counters with a number that is out of range",
    )


def _check_tap(tap: Tap) -> None:
    _check_texts((tap.module, tap.index))
    _require(0 <= tap.call < 2**31, f"call {tap.call} of a module")


def _check_description(described: Description) -> None:
    for name in ("modules", "coverage", "hooks"):
        length = len(getattr(described, name))
        _require(length <= MAX_DESCRIBED, f"{length} {name}")
    _require(0 <= described.version < WHOLE, f"version {described.version} of a description")
    for module in described.modules:
        _check_texts((module.path, module.type, module.parent or "", *module.aliases, *module.bases))
        _check_texts((module.source,), MAX_LONG_TEXT)
        _check_texts(name for name, _ in module.shapes)
        _check_texts(text for pair in module.placements for text in pair)
        _require(0 <= module.parameters < WHOLE and 0 <= module.trainable < WHOLE, "a number of parameters")
    for covered in described.coverage:
        _check_texts((covered.path, covered.type))
        _check_texts((covered.reason,), MAX_LONG_TEXT)
    for hook in described.hooks:
        _check_texts((hook.owner, hook.point, *hook.options))
        _check_texts((hook.function, hook.where, hook.warning), MAX_LONG_TEXT)
        _require(abs(hook.number) < WHOLE, f"hook {hook.number}")


def _check_item(item: Item) -> None:
    _require(0 <= item.step < WHOLE, f"step {item.step}")
    if isinstance(item, FrameItem):
        _require(len(item.events) <= MAX_EVENTS, f"{len(item.events)} events in a frame")
        for event in item.events:
            _check_event(event)
        _require(len(item.scalars) <= MAX_SCALARS, f"{len(item.scalars)} scalars in a frame")
        _check_texts(item.scalars)
        _require(len(item.labels) <= MAX_LABELS, f"{len(item.labels)} labels of a frame")
        _check_texts((*item.labels, *item.labels.values()))
        _require(0 <= item.micro_batches < WHOLE, f"{item.micro_batches} micro-batches")
        for call in item.flow.calls if item.flow is not None else ():
            _check_texts((call.module,))
            _require(0 <= call.call < 2**31, f"call {call.call} of a module")
        for size in item.flow.sizes if item.flow is not None else ():
            forms = (*size.inputs, *size.outputs)
            _check_texts((size.made_by, size.why, *(text for form in forms for text in (form.place, form.dtype))))
    elif isinstance(item, EndItem):
        if item.failure is not None:
            _require(0 <= item.failure.step < WHOLE, f"step {item.failure.step}")
            texts = item.failure.error, item.failure.traceback, item.failure.file, item.failure.code
            _check_texts(texts, MAX_LONG_TEXT)
            _check_texts((item.failure.signal, item.failure.module or ""))
            _require(0 <= item.failure.line < WHOLE, f"line {item.failure.line}")
    elif isinstance(item, SnapshotItem):
        _check_tap(item.tap)
        _check_texts((item.dtype, item.stored))
        nbytes = len(item.values) if is_media(item.dtype) else 0
        _require(nbytes <= MAX_MEDIA_BYTES, f"an image, text, table, or figure of {nbytes} bytes")
        _require(abs(item.request) < WHOLE, f"a snapshot for command {item.request}")
        if item.names is not None:
            _check_names(item.names)


def _check_names(names: Names) -> None:
    many = sum(map(len, names.tokens), len(names.labels))
    _require(many <= MAX_NAMES and len(names.tokens) <= MAX_NAMES, f"{many} names of tokens and samples")
    for texts in (*names.tokens, names.labels):
        _check_texts(texts)


def _check_event(event: Event) -> None:
    _require(0 <= event.time_s < LATEST_TIME_S, f"an event {event.time_s} s after 1970")
    _check_texts((event.name, event.module))
    _check_texts((event.message,), MAX_LONG_TEXT)
    _require(len(event.about) <= MAX_ABOUT, f"an event with {len(event.about)} facts")
    _check_texts(event.about)
    _check_texts((text for text in event.about.values() if isinstance(text, str)), MAX_LONG_TEXT)
    wholes = [value for value in event.about.values() if isinstance(value, int)]
    _require(all(abs(value) < WHOLE for value in wholes), "an event with a number that is out of range")
    _require(abs(event.step) < WHOLE and 0 <= event.count < WHOLE, "an event with a number that is out of range")


def _check_texts(texts: Iterable[str], longest: int = MAX_TEXT) -> None:
    for text in texts:
        if len(text) > longest:
            raise WireError(
                f"a batch contains a string of {len(text)} characters; at most {longest} are allowed: shorten it"
            )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WireError(f"a batch holds {what}: it was damaged, or comes from another program")
