"""The saved runs that the list of runs lacks."""

from __future__ import annotations

from pathlib import Path

from hookcore.records import text_of


class Unlisted:
    """Which folders of saved runs a list doesn't have, and why."""

    def __init__(self) -> None:
        self.unread: dict[Path, str] = {}  # those that can't be read, and why
        self.too_many: set[Path] = set()  # those of older runs that the list has no room for

    def forget(self, path: Path) -> None:
        """Forget a folder that was removed."""
        self.too_many.discard(path)
        self.unread.pop(path, None)

    @property
    def words(self) -> str:
        """Say which runs are missing from the list, and why; empty if none are."""
        said = []
        unread = list(self.unread.values())
        if many := len(self.too_many):
            runs, link = ("run is", "its link works") if many == 1 else ("runs are", "their links work")
            said.append(f"{many:,} older saved {runs} not listed, but {link}.")
        if many := len(unread):
            runs = "1 saved run" if many == 1 else f"{many:,} saved runs"
            said.append(f"{runs} can't be read{'' if many == 1 else '. The first'}: {text_of(unread[0])}.")
        return " ".join(said)
