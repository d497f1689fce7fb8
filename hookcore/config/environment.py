"""Environment variables that are not settings of a training, and not a launcher's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from hookcore.config.readers import did_you_mean
from hookcore.config.table import SETTINGS

PREFIX: Final = "HOOKCORE_"
TOKEN: Final = "HOOKCORE_TOKEN"
# Those of servers, collectors, and hookcore's own processes, and the others of trainings, without the prefix.
_OTHERS: Final = (
    "ALLOWED_HOSTS CA_FILE CERTFILE CLICKHOUSE_PASSWORD DASHBOARD FRAME_ANCESTORS HOME HOST IDLE_STOP_S INSERT "
    "KEEP_LIMIT KEYFILE LISTEN_FD LOCK_FD LOST_AFTER_S MAX_BODY MAX_CLIENTS MAX_CONNECTIONS MAX_RUNS PORT READ_TOKEN "
    "RECEIVE_S RETAIN ROOT_PATH RULES_FILE RUN_PYTHONPATH SPOOL SPOOL_LIMIT STORE SYNC TO TOKEN TO_TOKEN URL"
)
KNOWN: Final = frozenset(
    [*(each.variable for each in SETTINGS), *(f"{PREFIX}{name}" for name in _OTHERS.split())],
)


def token_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the token for a server; files and secret stores often end it with a newline."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def unknown_variables(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence about each variable that looks like one of hookcore's and is none."""
    for name in sorted(os.environ if environment is None else environment):
        if name.startswith(PREFIX) and name not in KNOWN:
            yield f"the variable {name} is unknown and has no effect.{did_you_mean(name, KNOWN)}"
