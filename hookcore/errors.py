"""The exceptions a caller can meet. All of them are raised by a call of the user's, never from inside a hook.

HookcoreError
+-- ArgumentError (also a ValueError)    a wrong argument: what was given, what is allowed, the nearest match
+-- PatternError (also a ValueError)     a pattern that is malformed or matches no module
+-- HookError (also a RuntimeError)      a hook that cannot be registered there, and why
+-- TraceError (also a LookupError)      a traced tensor that is not there, and why
+-- ClosedError (also a RuntimeError)    the watcher or the store was closed
+-- WireError (also a ValueError)        bytes that are not a message of hookcore's
+-- ServerError (also a RuntimeError)    a server that cannot be reached, or that refused what it was asked
"""

from __future__ import annotations


class HookcoreError(Exception):
    """The root of every exception that hookcore raises."""


class ArgumentError(HookcoreError, ValueError):
    """A wrong argument."""


class PatternError(HookcoreError, ValueError):
    """A pattern that is malformed or matches nothing."""


class HookError(HookcoreError, RuntimeError):
    """A hook that cannot be registered where it was asked for."""


class TraceError(HookcoreError, LookupError):
    """A layer that did not run, or a tensor or gradient of it that a trace does not have."""


class ClosedError(HookcoreError, RuntimeError):
    """A call on something that was closed."""


class WireError(HookcoreError, ValueError):
    """Bytes that are not a message of hookcore's."""


class ServerError(HookcoreError, RuntimeError):
    """A server that cannot be reached, or that refused; then `status` is the number of its answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
