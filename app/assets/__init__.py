"""The static files of the pages, named by their contents."""

from .files import FOLDER, MAX_NAMES, read, read_all, router, vendored, version

__all__ = ["FOLDER", "MAX_NAMES", "read", "read_all", "router", "vendored", "version"]
