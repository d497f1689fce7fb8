"""Prints the table of settings in Markdown."""

from hookcore.config import as_markdown

if __name__ == "__main__":
    print(as_markdown(), end="")
