"""Runs whose trainer ended before this dashboard answered it: their data is in a spool, or they are only listed."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from fastapi import FastAPI

from hookcore.delivery.dashboard.home import undelivered_folder
from hookcore.delivery.dashboard.notices import take_orphans
from hookcore.errors import HookcoreError
from hookcore.records.wire import RunInfo

from .disk import WrongKeyError
from .keep import Keeper
from .limits import tamed
from .run import emit_event
from .runs import Runs
from .undelivered import Undelivered

logger = logging.getLogger("hookcore")

LOOK_EVERY_S: Final = 2.0


def follow_orphans(app: FastAPI) -> None:
    """List orphans now and regularly, from a separate thread, until the server stops."""
    state = app.state
    state.undelivered = Undelivered(
        state.runs, lambda batch: state.take(batch, bytearray(), True), undelivered_folder()
    )
    threading.Thread(target=_follow, args=(app.state,), name="hookcore-orphans", daemon=True).start()


def _follow(state: Any) -> None:
    problem = ""
    while not state.stopping:
        try:
            orphans = take_orphans()
            state.undelivered.look()  # when a notice is free, the spool of its trainer is complete
            for info in orphans:
                list_orphan(state.runs, state.keeper, info)
            problem = ""
        except (HookcoreError, OSError) as error:
            if str(error) != problem:  # a warning every two seconds would fill the log
                logger.warning("hookcore: can't read the notices of runs: %s", error)
            problem = str(error)
        time.sleep(LOOK_EVERY_S)


def list_orphan(runs: Runs, keeper: Keeper, info: RunInfo) -> None:
    """List a run without data as lost, unless it is known."""
    info = tamed(info)
    if runs.get(info.id) is not None:
        return
    run = runs.open(info)
    if run is None:
        logger.warning("hookcore: there is no room to list the run %s, which sent no data", info.id)
        return
    run.signs.seen_at = float("-inf")
    message = f"the training process ({info.pid}) ended before this dashboard answered it; its data is lost"
    emit_event(run, "never-arrived", message, "warning")
    try:
        keeper.opened(run, True)
    except WrongKeyError as error:
        logger.warning("hookcore: %s", error)
        runs.drop(run)
        return
    keeper.release(run)
