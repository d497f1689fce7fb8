"""Notifications of a server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hookcore.reading.answers.base import Answer


class NotificationTarget(Answer, frozen=True):
    """A place that notifications go to. Its address is a secret."""

    name: Annotated[str, Meta(description="the service, numbered if there are several")]
    sent: Annotated[int, Meta(description="messages that it accepted")]
    failed: Annotated[int, Meta(description="messages that it didn't accept in three attempts")]
    works: Annotated[bool | None, Meta(description="whether it accepted the newest one; null before the first")]


class Notifications(Answer, frozen=True):
    """Where a server sends notifications, and how many arrived."""

    targets: tuple[NotificationTarget, ...]
    waiting: Annotated[int, Meta(description="incidents waiting for the next message")]
    dropped: Annotated[int, Meta(description="incidents dropped because too many were waiting")]
