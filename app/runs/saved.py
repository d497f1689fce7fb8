"""Saved runs: listed with the data and the page file in their folder, and loaded on demand."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hookcore.delivery.archive import SUFFIX, Archive, is_held, load_into, read_archive
from hookcore.delivery.dashboard.private import make_folder
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.findings import Choices, changes_in, follow, started_with
from hookcore.platform import lock_file, open_to_lock
from hookcore.reading import Quiet
from hookcore.records import Event, Severity
from hookcore.store import StepRange, Store

from .edits import annotations_in, merged
from .joint import joint_in
from .limits import MAX_TAGS, tamed
from .parts import End
from .run import Run, emit_event, follow_rules
from .runs import Runs
from .shelf import PAGE_FILE, Shelf, bytes_below, is_run, read_json, write_page

# Saved runs: listed with the data in their folder, and loaded on demand.

logger = logging.getLogger("hookcore")

MAX_NOTES: Final = 20_000
_BEING_WRITTEN: Final = (
    "Another process is still writing this run, so it isn't lost. Data after this step isn't read: use the "
    "server that the training sends to, or open the run again later."
)
_CUT: Final = (
    "The process that saved this run was killed, or its disk was full, before everything was written. Data that was "
    "received but not yet written, usually that of the last five seconds, is missing after this step. Its amount is "
    "unknown. A trainer that is still running sends it again when it reconnects."
)


def show(runs: Runs, path: Path) -> Run:
    """Load a saved run and list it; raises HookcoreError if it can't be read."""
    archive = read_archive(path)
    run = runs.get(archive.info.id)
    if run is None:
        run = make_known(runs, archive.folder, archive)
        runs.add(run)
    if not run.loaded:
        load(runs, run)
    return run


def load(runs: Runs, run: Run) -> None:
    """Read a run that is on disk into memory."""
    if run.saved.folder is None:
        return
    store = follow(Store(runs.store_bytes(run.info.memory)), run.edits.rule_changes, run.info.rank)
    try:
        is_written = run.end.step is None and run.saved.writer is None and is_held(run.saved.folder)
        archive = read_archive(run.saved.folder)
        fill_store(archive, store)
        if is_written and run.commands.local is None:
            _warn(store, "being-written", _BEING_WRITTEN)
        elif archive.is_cut and not (is_written or run.saved.is_back):
            _warn(store, "cut-off", _CUT)
    except HookcoreError as error:
        _warn(store, "damaged", f"this run can no longer be read: {error}")
    store.choose(run.rules)  # also those that were changed after the last step
    if run.end.step is not None:
        store.settle()
    run.saved.remember(store)
    run.swap(store, loaded=True)


MAX_TRIED: Final = 64_000_000  # bytes of a run on disk that are read to try thresholds


def tried(runs: Runs, run: Run, chosen: Choices) -> Store | None:
    """Read a saved run as if it had begun with other thresholds. None if it isn't saved, or too large."""
    folder = run.saved.folder
    if folder is None or bytes_below(folder) > MAX_TRIED:
        return None
    with runs.trying, contextlib.suppress(HookcoreError):
        store = follow(Store(runs.store_bytes(run.info.memory)), started_with(chosen), run.info.rank)
        load_into(store, read_archive(folder))
        store.choose(chosen)
        if run.end.step is not None:
            store.settle()
        return store
    return None


def archive_of(run: Run) -> Archive | HookcoreError:
    """Return the archive of a run, or why it can't be read."""
    if run.saved.folder is None:
        return HookcoreError("it was not written to disk")
    try:
        return read_archive(run.saved.folder)
    except HookcoreError as error:
        return error


def show_all(runs: Runs, path: Path) -> list[Run]:
    """List a saved run, or all runs in a folder. Raises ArgumentError if there is none."""
    folders = [] if not path.is_dir() or is_run(path) else Shelf(path.absolute(), 0).runs()
    if not folders:
        return [show(runs, path)]
    shown: list[Run] = []
    for folder in folders:
        call_logged(folder, lambda folder: shown.append(runs.add_known(make_known(runs, folder))), runs.unlisted.unread)
    if not shown:
        raise ArgumentError(f"{path} contains no readable run: give a folder with runs (*{SUFFIX}), or one of them")
    return shown


def make_known(runs: Runs, path: Path, archive: Archive | None = None) -> Run:
    """Return a run as its folder describes it; its values stay on disk."""
    archive = archive or read_archive(path)
    run = runs.known(tamed(archive.info))
    apply_folder(run, archive.folder, archive)
    return run


def apply_folder(run: Run, path: Path, archive: Archive) -> None:
    """Apply what a run's folder contains: its names, notes, acknowledgements, mutes, annotations, and end."""
    run.saved.folder, run.saved.key_hash = path, archive.key_hash
    apply_page(run, read_json(path / PAGE_FILE))
    run.saved.page = page_as_read(run)
    end = end_of(archive)
    if run.loaded:
        run.end = end
    else:
        run.outline(_steps_of(run, archive), end)


def _steps_of(run: Run, archive: Archive) -> StepRange:
    """Return the steps of a run on disk. Those of its summary may be older, if its server was killed."""
    newest, summary = archive.last_step, {"first_step": archive.first_step, "steps": archive.steps}
    if archive.steps is None:  # an earlier version wrote it
        summary = run.saved.summary
    first, count = (_whole(summary.get(name)) for name in ("first_step", "steps"))
    return StepRange(first if newest is not None else None, newest, count or 0)


def end_of(archive: Archive) -> End:
    """Return how a saved run ended, as far as its folder says so."""
    has_ended = archive.state == "ended" or archive.failure is not None
    return End(archive.last_step if has_ended else None, archive.failure)


def page_of(run: Run) -> dict[str, Any]:
    """Return what its readers have changed of a run, and its summary, in JSON types."""
    edits = run.edits
    return {
        "name": run.name,
        "notes": edits.notes,
        "tags": edits.tags,
        "group": edits.group,
        "archived": edits.archived,
        **edits.quiet.as_data(),
        "annotations": {str(step): text for step, text in edits.annotations.items()},
        "rules": edits.rule_changes,
        "summary": run.saved.summary,
    }


def page_as_read(run: Run) -> dict[str, Any]:
    """Return what `page_of` does, as it is when it is read again: JSON has no tuples."""
    page: dict[str, Any] = json.loads(json.dumps(page_of(run)))
    return page


def steps_of(run: Run) -> dict[str, Any]:
    """Return the part of the summary with the steps."""
    steps = run.store.steps()
    return {"first_step": steps.first, "newest_step": steps.newest, "steps": steps.count}


def noted_at(run: Run) -> int | None:
    """Return the newest step of a run's summary if the run has later ones, because its server was killed."""
    noted, newest = _whole(run.saved.summary.get("newest_step")), run.store.steps().newest
    return noted if noted is not None and newest is not None and noted < newest else None


def apply_page(run: Run, page: Mapping[str, Any]) -> None:
    """Apply what `page_of` returned earlier. Parts that can't be read are left out."""
    edits = run.edits
    run.name = _text(page.get("name")) or run.name
    edits.notes, edits.group = (_text(page.get(name, getattr(edits, name))) for name in ("notes", "group"))
    edits.archived = page.get("archived") is True
    tags = page.get("tags", edits.tags)
    listed = tags if isinstance(tags, list | tuple) else ()
    edits.tags = tuple(tag for tag in listed if isinstance(tag, str))[:MAX_TAGS]
    edits.quiet = Quiet.of(page)
    edits.annotations = annotations_in(page.get("annotations"))
    edits.rule_changes = changes_in(page.get("rules")) or edits.rule_changes
    summary = page.get("summary")
    run.saved.summary = summary if isinstance(summary, dict) else {}


def fill_store(archive: Archive, store: Store) -> None:
    """Load the values of a saved run into a store, with events about missing data."""
    load_into(store, archive)
    for sentence in archive.damages:
        _warn(store, "damaged", f"a part of this saved run could not be read: {sentence}")
    if not archive.has_sketches:
        message = (
            "An earlier version saved this run's histograms with different bins, so they can't be shown. All other "
            "values can."
        )
        _add_event(store, "no-histograms", message, "info")
    if archive.lost:
        _warn(store, "not-kept", f"{archive.lost} frames and snapshots of this run were not written")


def _warn(store: Store, name: str, message: str) -> None:
    _add_event(store, name, message, "warning")


def _add_event(store: Store, name: str, message: str, severity: Severity) -> None:
    store.add_event(Event(store.steps().newest or 0, time.time(), name, message, severity))


def _text(value: object) -> str:
    return value[:MAX_NOTES] if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**53 else None


def call_logged(path: Path, call: Callable[[Path], Any], failed: dict[Path, str] | None = None) -> None:
    """Call a function for a folder; log and note an error, because one damaged run must not hide the others."""
    try:
        call(path)
    except (HookcoreError, OSError, ValueError, TypeError) as error:
        logger.warning("hookcore: %s can't be listed: %s", path, error)
        if failed is not None:
            failed[path] = str(error)


# The page file of each saved run: what readers edited, and a summary for the list.

NOTE_EVERY_S: Final = 30.0  # between two summaries of a live run
LOCK_S: Final = 2.0  # another server has stopped in the middle of its edit, if it takes longer
LOOK_S: Final = 0.01

Summarize = Callable[[Run], dict[str, Any]]


class PageFiles:
    """Writes the name, notes, tags, acknowledgements, mutes, and annotations of runs, and their summaries."""

    def __init__(self, summarize: Summarize) -> None:
        self._summarize = summarize
        self._noted_at: dict[str, float] = {}  # by the run's id
        self._lock = threading.Lock()

    def write(self, run: Run) -> None:
        """Save the page file of a run."""
        self._write(run, lambda path, error: logger.warning("hookcore: %s can't be written: %s", path, error))

    def write_after_part(self, run: Run, is_last: bool) -> None:
        """Write it from time to time, and with the last part of the run."""
        if is_last or time.monotonic() - self._noted_at.get(run.id, float("-inf")) > NOTE_EVERY_S:
            self._noted_at[run.id] = time.monotonic()
            self.write(run)
        if is_last:
            self._noted_at.pop(run.id)

    def renew(self, run: Run) -> None:
        """Write it for a run that was just read, if its server was killed before it wrote the last summary."""
        if noted_at(run) is not None and run.saved.folder is not None and not is_held(run.saved.folder):
            self.write(run)

    def save_edit(self, run: Run) -> None:
        """Write what a reader has changed of a run, or say on its pages that this isn't possible."""
        why = "changes to the run's name, notes, and the like can't be saved, and will be lost when the server stops"
        self._write(run, lambda path, error: emit_event(run, "not-kept", f"{why}: {error}", "warning"))

    def _write(self, run: Run, failed: Callable[[Path, OSError], None]) -> None:
        folder = run.saved.folder
        if folder is None:
            return
        try:
            if run.loaded:
                run.saved.summary = steps_of(run) | self._summarize(run)
            make_folder(folder)
            with self._lock, locked(folder):
                self._merge(run, folder)
        except OSError as error:
            failed(folder / PAGE_FILE, error)

    @staticmethod
    def _merge(run: Run, folder: Path) -> None:
        """Write what was changed here, and take what other servers over the same folder have changed."""
        own, saved = page_as_read(run), read_json(folder / PAGE_FILE)
        before = own if run.saved.page is None else run.saved.page
        content = merged(before, own, {**own, **saved})
        write_page(folder, content)
        if any(content[name] != own[name] for name in own if name != "summary"):
            rules, now = run.rules, page_as_read(run)  # a reader may just be editing it
            apply_page(run, content if now == own else merged(own, now, content))
            follow_rules(run, rules)
            if (joint := joint_in(run)) is not None:
                joint.follow_edit(run)
            run.changes.tell()
        run.saved.page = {name: content[name] for name in own}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other servers while the block runs, but don't wait for long."""
    number = open_to_lock(folder)
    try:
        until = time.monotonic() + LOCK_S
        while time.monotonic() < until:
            try:
                lock_file(number)
                break
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:
                break  # a file system without locks
        yield
    finally:
        os.close(number)
