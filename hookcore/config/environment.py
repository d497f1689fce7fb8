"""Environment variables that are not settings: the token, and this process's place in a distributed training."""

from __future__ import annotations

import os
from collections.abc import Mapping

TOKEN = "HOOKCORE_TOKEN"


def token_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the token for a server; files and secret stores often end it with a newline."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def rank() -> str:
    """Return this process's rank: "0" for the first process, also outside of a distributed training."""
    given = os.environ
    if given.get("RANK"):  # torchrun, accelerate
        return given["RANK"]
    if given.get("NODE_RANK") or given.get("LOCAL_RANK"):  # Lightning's own launcher
        node, local = given.get("NODE_RANK") or "0", given.get("LOCAL_RANK") or "0"
        return local if node == "0" else f"{node}.{local}"
    return given.get("SLURM_PROCID") or "0"
