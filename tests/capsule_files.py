"""Access to the capsules that a watcher wrote."""

from __future__ import annotations

from pathlib import Path

import hookcore
from hookcore.delivery.dashboard import capsules


def capsules_of(watcher: hookcore.Watcher) -> list[Path]:
    return sorted(capsules.folder_of(watcher._delivery.run.id).glob("*.capsule"))
