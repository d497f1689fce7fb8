"""The static files of the pages, named by their contents, and the templates."""

from .files import FOLDER, MAX_NAMES, Package, read, read_all, router, vendored, version
from .templates import TEMPLATES, open_templates

__all__ = [
    "FOLDER",
    "MAX_NAMES",
    "TEMPLATES",
    "Package",
    "open_templates",
    "read",
    "read_all",
    "router",
    "vendored",
    "version",
]
