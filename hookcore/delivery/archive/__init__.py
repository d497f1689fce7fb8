"""A run on disk, as Parquet files that other programs can read without hookcore. Imports no torch and no web."""

from __future__ import annotations

from hookcore.delivery.archive.folder import SUFFIX, DiskCounters, folder_name, is_held
from hookcore.delivery.archive.reader import Archive, Recorded, Unheard, load_frames, load_into, read_archive
from hookcore.delivery.archive.writer import ArchiveSink, ArchiveWriter, Scribe

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
