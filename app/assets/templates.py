"""The templates of pages and reports."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent.parent / "templates"


def open_templates(folder: str = "") -> Environment:
    """Return the templates of a folder. They escape all values, and a name without a value is an error."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES / folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
