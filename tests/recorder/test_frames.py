"""Frames of the recorder's thread: their rows and taps."""

from __future__ import annotations

import numpy as np

from tests.inside import class_of, module_of

ShownRows = class_of("ShownRows")
MAX_KNOWN_ROWS = module_of("ShownRows").MAX_KNOWN_ROWS


def test_frames_of_the_same_slots_share_one_read_only_array_of_taps() -> None:
    numbers = [0, -1, 1]
    rows = ShownRows(numbers)
    taps, shown = rows.of(np.array([0, 2], np.uint32))
    assert (taps.tolist(), shown, taps.flags.writeable) == ([0, 1], None, False)
    numbers += [2, -1]  # a table of taps grows
    assert rows.of(np.array([0, 2], np.uint32))[0] is taps
    taps, shown = rows.of(np.arange(5, dtype=np.uint32))
    assert shown is not None
    assert (taps.tolist(), shown.tolist()) == ([0, 1, 2], [0, 2, 3])


def test_few_sets_of_slots_are_cached_at_a_time() -> None:
    rows = ShownRows(range(100))
    for slot in range(3 * MAX_KNOWN_ROWS):
        assert rows.of(np.array([slot], np.uint32))[0].tolist() == [slot]
        assert len(rows.known) <= MAX_KNOWN_ROWS
