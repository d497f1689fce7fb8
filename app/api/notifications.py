"""Notifications: what was sent, and a test."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException

from hookcore.delivery.notify import Notifier
from hookcore.reading import answers

from ..formats import StrictJson
from .routing import answered, router


def notifier_of(request: Request) -> Notifier:
    notifier: Notifier = request.app.state.notifications.notifier
    return notifier


NotifierParam = Annotated[Notifier, Depends(notifier_of)]


def notifications_of(notifier: Notifier) -> answers.Notifications:
    """Return the counters of a notifier, without any address."""
    targets = tuple(
        answers.NotificationTarget(each.name, each.sent, each.failed, each.works) for each in notifier.targets
    )
    return answers.Notifications(targets, notifier.counters.waiting, notifier.counters.dropped)


@router.get("/notifications", summary="Notifications", responses=answered(answers.Notifications))
def notifications(notifier: NotifierParam) -> Response:
    """Return where this server sends notifications, and how many arrived."""
    return StrictJson(notifications_of(notifier))


@router.post(
    "/notifications/test", summary="Test the notifications", responses=answered(answers.Notifications, 200, 409)
)
def test_notifications(notifier: NotifierParam) -> Response:
    """Send a message to every target now, and return whether it arrived."""
    if not notifier.targets:
        raise HTTPException(409, "this server sends no notifications: start it with `hookcore serve --notify URL`")
    if not notifier.test():
        raise HTTPException(409, "another test is running: wait for it")
    return StrictJson(notifications_of(notifier))
