"""Counts how the code is divided: files, lines, headers, base classes with a single child, and names that repeat.

    python -m benchmarks.house

A header is what stands before the first statement of a file that isn't its docstring or an import. A single-child base
is a class of this project from which exactly one other one of it derives, unless it is a protocol.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MAX_FOLDERS: Final = 3  # that have a file of the same name
MAX_FILES: Final = 2  # that have a class of the same name


def python_in(*folders: str) -> dict[Path, str]:
    """Return the text of each Python file in these folders."""
    return {path: path.read_text("utf-8") for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


def lines_of(texts: dict[Path, str]) -> int:
    """Return how many lines they have together."""
    return sum(len(text.splitlines()) for text in texts.values())


def header_of(text: str) -> int:
    """Return the number of lines before the first statement that is neither an import nor the docstring."""
    for node in ast.parse(text).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            decorators = node.decorator_list if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            return min([node.lineno, *(each.lineno for each in decorators)]) - 1
    return len(text.splitlines())


def classes_in(texts: dict[Path, str]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Yield all classes."""
    for path, text in texts.items():
        yield from ((path, node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def single_children(texts: dict[Path, str]) -> list[str]:
    """Return the bases that have one child, as "base <- child". A base with a dot belongs to a framework."""
    known, children = dict[str, ast.ClassDef](), defaultdict[str, list[str]](list)
    for _, node in classes_in(texts):
        known[node.name] = node
        for base in (each for each in node.bases if not isinstance(each, ast.Attribute)):
            children[ast.unparse(base).partition("[")[0].rpartition(".")[2]].append(node.name)
    return [
        f"{name} <- {found[0]}"
        for name, found in sorted(children.items())
        if len(found) == 1 and name in known and "Protocol" not in ast.unparse(known[name]).partition(":")[0]
    ]


def repeated(texts: dict[Path, str]) -> tuple[list[str], list[str]]:
    """Return the names of files in many folders, and those of classes in many files."""
    files = Counter(path.name for path in texts if path.name not in ("__init__.py", "__main__.py"))
    classes = Counter(node.name for _, node in classes_in(texts))
    return (
        [f"{name} ({many})" for name, many in files.most_common() if many > MAX_FOLDERS],
        [f"{name} ({many})" for name, many in classes.most_common() if many > MAX_FILES],
    )


def main() -> None:
    """Print the table."""
    code, tests = python_in("hookcore", "app"), python_in("tests")
    scripts = {
        path: path.read_text("utf-8")
        for path in sorted((ROOT / "app/static").rglob("*.js"))
        if "vendor" not in path.parts
    }
    bases, (files, classes) = single_children(code), repeated(code)
    print("| | now |\n|---|---|")
    print(f"| Python files, lines in `hookcore/` and `app/` | {len(code)}, {lines_of(code):,} |")
    print(f"| script modules, lines | {len(scripts)}, {lines_of(scripts):,} |")
    print(f"| file headers, share of lines | {sum(map(header_of, code.values())) / lines_of(code):.1%} |")
    print(f"| single-child base classes | {len(bases)} |")
    print(f"| names of files in more than {MAX_FOLDERS} folders | {len(files)} |")
    print(f"| names of classes in more than {MAX_FILES} files | {len(classes)} |")
    print(f"| tests, files and lines of Python | {len(tests)}, {lines_of(tests):,} |")
    for title, found in (("single-child bases", bases), ("names of files", files), ("names of classes", classes)):
        print(f"\n{title}: {', '.join(found) or 'none'}")


if __name__ == "__main__":
    main()
