"""What tests look at inside a watcher and a sink, or make fail: the only file of the tests that knows where it is."""

from __future__ import annotations

import pkgutil
import sys
import threading
from importlib import import_module
from typing import Any

import hookcore
from hookcore.delivery.delivery import Delivery
from hookcore.delivery.http import HttpSink
from hookcore.recorder import Recorder
from hookcore.watcher import parts_of


def recorder_of(watcher: hookcore.Watcher) -> Recorder:
    return parts_of(watcher).recorder


def delivery_of(watcher: hookcore.Watcher) -> Delivery:
    return parts_of(watcher).delivery


def run_id_of(watcher: hookcore.Watcher) -> str:
    return parts_of(watcher).delivery.run.id


def keeper_of(watcher: hookcore.Watcher) -> Any:
    """Return what saves the steps of a watcher with capsules."""
    return parts_of(watcher).recorder.capture.dispatcher.keeper


def sender_of(sink: Any) -> Any:
    """Return the sender of an HTTP sink, with its thread."""
    assert isinstance(sink, HttpSink)
    return sink.sender


def pause_of(sink: Any) -> Any:
    """Return how often the sender of a sink has failed in a row, and until when it waits."""
    return sender_of(sink).retries.pause


def thread_of(sink: Any) -> Any:
    """Return the thread of a sink's sender, or None before it starts and after it ends."""
    return sender_of(sink).thread


def threads_named(name: str) -> list[threading.Thread]:
    """Return the running threads of hookcore with a name, such as "hookcore-machine"."""
    return [each for each in threading.enumerate() if each.name == name]


def module_of(part: str, room: str = "recorder") -> Any:
    """Return the module that defines a class or function of a room, wherever it is, to test one part or its failure."""
    within = f"hookcore.{room}"
    found = _defining(part, within)
    if not found:  # nothing has imported it yet: import the room
        for module in pkgutil.walk_packages(import_module(within).__path__, f"{within}."):
            import_module(module.name)
        found = _defining(part, within)
    (one,) = found
    return one


def _defining(part: str, within: str) -> list[Any]:
    inside = (module for name, module in list(sys.modules.items()) if name.startswith(f"{within}."))
    return [module for module in inside if getattr(vars(module).get(part), "__module__", "") == module.__name__]


def class_of(part: str, room: str = "recorder") -> Any:
    """Return a class or a function of a room by its name, wherever it is."""
    return getattr(module_of(part, room), part)
