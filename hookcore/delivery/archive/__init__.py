"""A run on disk, as Parquet files that other programs can read without hookcore. Imports no torch and no web."""

from __future__ import annotations

from hookcore.delivery.archive.layout import SUFFIX, folder_name
from hookcore.delivery.archive.loading import Recorded, Unheard, load_frames, load_into
from hookcore.delivery.archive.reader import Archive, read_archive
from hookcore.delivery.archive.scribe import Scribe
from hookcore.delivery.archive.sink import ArchiveSink
from hookcore.delivery.archive.state import DiskCounters, is_held
from hookcore.delivery.archive.writer import ArchiveWriter

__all__ = [
    "SUFFIX",
    "Archive",
    "ArchiveSink",
    "ArchiveWriter",
    "DiskCounters",
    "Recorded",
    "Scribe",
    "Unheard",
    "folder_name",
    "is_held",
    "load_frames",
    "load_into",
    "read_archive",
]
