"""What tests look at inside a watcher and a sink: the only file of the tests that knows where it is."""

from __future__ import annotations

import threading
from typing import Any

import hookcore
from hookcore.delivery.delivery import Delivery
from hookcore.delivery.http import HttpSink
from hookcore.recorder import Recorder


def recorder_of(watcher: hookcore.Watcher) -> Recorder:
    return watcher._recorder


def delivery_of(watcher: hookcore.Watcher) -> Delivery:
    return watcher._delivery


def run_id_of(watcher: hookcore.Watcher) -> str:
    return watcher._delivery.run.id


def keeper_of(watcher: hookcore.Watcher) -> Any:
    """Return what saves the steps of a watcher with capsules."""
    return watcher._recorder.capture.dispatcher.keeper


def late_steps_of(watcher: hookcore.Watcher) -> Any:
    """Return the uncaptured steps that a watcher can still save."""
    return keeper_of(watcher)._late_steps


def sender_of(sink: Any) -> Any:
    """Return the sender of an HTTP sink, with its thread."""
    assert isinstance(sink, HttpSink)
    return sink._sender


def pause_of(sink: Any) -> Any:
    """Return how often the sender of a sink has failed in a row, and until when it waits."""
    return sender_of(sink)._retries.pause


def thread_of(sink: Any) -> Any:
    """Return the thread of a sink's sender, or None before it starts and after it ends."""
    return sender_of(sink)._thread


def threads_named(name: str) -> list[threading.Thread]:
    """Return the running threads of hookcore with a name, such as "hookcore-machine"."""
    return [each for each in threading.enumerate() if each.name == name]
