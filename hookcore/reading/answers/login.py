"""Logging in."""

from __future__ import annotations

from hookcore.reading.answers.base import Answer, Number


class LoginLink(Answer, frozen=True):
    """A one-time link that logs in one browser."""

    url: str
    expires_s: Number
