"""The recorder: hook bodies, steps, and frames of one watcher. It knows no web and no store, only a sink."""

from hookcore.recorder.recorder import Recorder

__all__ = ["Recorder"]
