"""Access to the capsules that a watcher wrote."""

from __future__ import annotations

from pathlib import Path

import hookcore
from hookcore.delivery.dashboard import capsules
from tests.inside import run_id_of


def capsules_of(watcher: hookcore.Watcher) -> list[Path]:
    return sorted(capsules.folder_of(run_id_of(watcher)).glob("*.capsule"))
