"""The exceptions of hookcore. All come from a call in the user's code, never from inside a hook, except StopTraining.

HookcoreError
+-- ArgumentError (also a ValueError)    an invalid argument: its value, what is allowed, the nearest match
+-- PatternError (also a ValueError)     a pattern that is malformed or matches no module
+-- HookError (also a RuntimeError)      a hook that can't be registered, and why
+-- TraceError (also a LookupError)      a layer, tensor, or gradient that a trace does not have, and why
+-- CapsuleError (also a RuntimeError)   a capsule that can't be written, read, or replayed
+-- ClosedError (also a RuntimeError)    the watcher or the store was closed
+-- WireError (also a ValueError)        bytes that are not a hookcore message
+-- ServerError (also a RuntimeError)    a server that can't be reached, or that rejected a request
+-- StopTraining                         raised by you in an `on_incident` callback, to leave the training step
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The packages that only a dashboard and saved runs need, by the names of their modules. A training that sends to
# another machine does without them: docs/installing.md.
OF_DASHBOARDS: Final = (
    "anyio",
    "fastapi",
    "httptools",
    "jinja2",
    "orjson",
    "plotly",
    "prometheus_client",
    "pyarrow",
    "safetensors",
    "uvicorn",
    "websockets",
)


def shown(given: object) -> str:
    """Return the representation of an argument, shortened for the message of an error."""
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


class HookcoreError(Exception):
    """Base class of all exceptions that hookcore raises."""


class ArgumentError(HookcoreError, ValueError):
    """An invalid argument."""


class PatternError(HookcoreError, ValueError):
    """A pattern that is malformed or matches nothing."""


class HookError(HookcoreError, RuntimeError):
    """A hook that can't be registered."""


class TraceError(HookcoreError, LookupError):
    """A layer that did not run, or a tensor or gradient of it that a trace does not have."""


class ClosedError(HookcoreError, RuntimeError):
    """A call on a closed object."""


class WireError(HookcoreError, ValueError):
    """Bytes that are not a hookcore message."""


class ServerError(HookcoreError, RuntimeError):
    """A server that can't be reached, or that rejected a request; `status` is then the HTTP status."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class CapsuleError(HookcoreError, RuntimeError):
    """A capsule that can't be written, read, or replayed."""


class StopTraining(HookcoreError):  # noqa: N818, because it is not an error, like StopIteration
    """Raise it in an `on_incident(at="step")` callback to leave the training step on purpose."""


def lacking(package: str) -> str:
    """Return what to install if one of the packages of dashboards is missing."""
    return (
        f"{package} is not installed: this environment has only what a training needs that sends to another machine. "
        "Run `pip install hookcore`, which adds the rest"
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn an import that fails because a package of dashboards is missing into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OF_DASHBOARDS:
            raise
        raise ArgumentError(lacking(package)) from error
