"""What operating systems do differently, as far as Linux shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookcore.platform import lock_file, unlock_file


def test_a_lock_is_of_one_descriptor_until_it_is_given_back_or_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as first, path.open("rb") as second:
        lock_file(first)
        with pytest.raises(BlockingIOError):
            lock_file(second)
        with pytest.raises(BlockingIOError):
            lock_file(second.fileno(), shared=True)
        unlock_file(first.fileno())
        lock_file(second)
    with path.open("rb") as third:
        lock_file(third)


def test_shared_locks_go_together_and_keep_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as first, path.open("rb") as second, path.open("rb") as third:
        lock_file(first, shared=True)
        lock_file(second, shared=True)
        with pytest.raises(BlockingIOError):
            lock_file(third)
