"""Capsules: one training step in a file, and its replay, which finds the operator that went wrong.

Opening a capsule runs code, because it contains pickles. Only `replay` opens one; `read_about` and `read_frames` don't.
"""

from hookcore.capsules.content import read_frames
from hookcore.capsules.record import Recording, record
from hookcore.capsules.replay import Replay, as_text, replay
from hookcore.delivery.dashboard.capsules import read_about
from hookcore.errors import CapsuleError

__all__ = ["CapsuleError", "Recording", "Replay", "as_text", "read_about", "read_frames", "record", "replay"]
