"""Environment variables that are not settings, and not a launcher's: the token."""

from __future__ import annotations

import os
from collections.abc import Mapping

TOKEN = "HOOKCORE_TOKEN"


def token_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the token for a server; files and secret stores often end it with a newline."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()
