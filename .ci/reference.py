"""Writes the reference of the Python interface from its docstrings, as Markdown: one page for each group of names."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

import msgspec

import hookcore
from hookcore import errors, hooks, probes
from hookcore.findings import ownrules
from hookcore.hooks import tracing
from hookcore.reading import answers
from hookcore.reading.answers.base import Answer

WIDTH = 100  # of a signature on one line
MAX_CONSTANT = 60  # characters of a default
# A setting in the docstring of `watch`: a name, a default, and what it means on the same line and the following ones.
_SETTING = re.compile(r"^(\w+=.+?): (.+(?:\n {2,}.+)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Group:
    """A page: its title, what it is about, and the names on it. `module` is what the names are called with."""

    title: str
    about: str
    module: str
    names: tuple[str, ...]
    source: Any


def groups() -> dict[str, Group]:
    """Return all pages by their file names."""
    kinds = [name for name, each in vars(answers).items() if isinstance(each, type) and issubclass(each, Answer)]
    failures = [name for name in hookcore.__all__ if name in vars(errors)]
    return {
        "watch": Group(
            "watch and Watcher",
            "Start a watch, and control it while the training runs. The [guide](../guide.md) shows how.",
            "hookcore",
            ("watch", "Watcher", "detached"),
            hookcore,
        ),
        "client": Group(
            "Client",
            "Ask a server about its runs. The [HTTP interface](../http-api.md) has the same questions.",
            "hookcore",
            ("Client",),
            hookcore,
        ),
        "answers": Group(
            "Answers",
            "The classes that [`Client`](client.md) returns, with their fields. REST writes the same fields as JSON.",
            "hookcore.reading.answers",
            tuple(sorted(kinds)),
            answers,
        ),
        "hooks": Group(
            "hooks",
            "All hook points of PyTorch. [Hooks](../hooks.md) explains them.",
            "hookcore.hooks",
            tuple(hooks.__all__),
            hooks,
        ),
        "trace": Group(
            "trace",
            "Copies of the tensors of a few layers. [Hooks](../hooks.md) has examples.",
            "hookcore",
            ("trace", *(name for name in tracing.__all__ if name not in ("trace", "TraceKind"))),
            tracing,
        ),
        "probes": Group(
            "probes",
            "Functions for `watcher.probe`. [Probes](../probes.md) explains them.",
            "hookcore.probes",
            tuple(probes.__all__),
            probes,
        ),
        "rule": Group(
            "rule",
            "Rules of your own. [Rules](../rules.md) explains them.",
            "hookcore",
            ("rule", "Problem", "FrameView"),
            ownrules,
        ),
        "errors": Group(
            "Errors",
            "The exceptions that hookcore raises. [Troubleshooting](../troubleshooting.md) has their messages.",
            "hookcore",
            tuple(failures),
            errors,
        ),
    }


def page_of(group: Group) -> str:
    """Return a page as Markdown. Raises ValueError for a name without a docstring."""
    parts = [f"# {group.title}", group.about]
    for name in group.names:
        parts += _entry(f"{group.module}.{name}", getattr(group.source, name))
    return "\n\n".join(parts) + "\n"


def _entry(path: str, thing: Any) -> Iterator[str]:
    name = path.rpartition(".")[2]
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{path} has no docstring, and is public: write one, or take it out of the public names")
    yield f"## {name}"
    if not isinstance(thing, type):
        yield _code(path, thing)
        yield _markdown(text)
        return
    is_answer = issubclass(thing, Answer)
    if not is_answer and not issubclass(thing, Exception) and "__init__" in vars(thing) and _is_called(thing):
        yield _code(path, thing)
    yield _markdown(text)
    if is_answer:
        yield "\n".join(_fields_of(thing))
    for member, value in _members_of(thing):
        yield f"### {name}.{member}"
        if not isinstance(value, property | cached_property):
            yield _code(f"{name}.{member}", _function_of(value), bound=not isinstance(value, staticmethod))
        if said := inspect.getdoc(value):
            yield _markdown(said)


def _is_called(kind: type) -> bool:
    """Return whether users call a class themselves: those that functions return have parameters of internal types."""
    return kind.__name__ in ("Client", "GradientCosine", "NoiseScale", "Problem", "HookedModule")


def _members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, those of its own bases last, as they are in the source."""
    seen = set[str]()
    for base in kind.__mro__:
        if not base.__module__.startswith("hookcore") or base in (Answer,):
            continue
        for name, value in vars(base).items():
            is_member = callable(value) or isinstance(value, property | cached_property | classmethod | staticmethod)
            if is_member and not name.startswith("_") and name not in seen and not isinstance(value, type):
                seen.add(name)
                yield name, value


def _function_of(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def _fields_of(kind: type) -> Iterator[str]:
    """Yield the fields of an answer as a list: name, type, and description."""
    hints = get_type_hints(kind, include_extras=True)
    written = {
        name: str(hint)
        for base in reversed(kind.__mro__)
        for name, hint in vars(base).get("__annotations__", {}).items()
    }
    for field in msgspec.structs.fields(kind):
        about = next(
            (
                each.description
                for each in getattr(hints[field.name], "__metadata__", ())
                if getattr(each, "description", None)
            ),
            "",
        )
        yield f"- `{field.name}`: `{_plain(written[field.name])}`" + (f", {about}" if about else "")


def _plain(annotation: str) -> str:
    """Return a type without what describes it: `str` for `Annotated[str, Meta(...)]`."""
    tree = ast.parse(annotation, mode="eval").body
    if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Annotated" and isinstance(tree.slice, ast.Tuple):
        tree = tree.slice.elts[0]
    return ast.unparse(tree)


def _code(path: str, function: Any, bound: bool = False) -> str:
    """Return the call of a function as a block of Python."""
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.annotation != "Never"]
    given = given[1:] if bound else given
    parts = list(_parameters(given))
    returned = (
        "" if signature.return_annotation is signature.empty else f" -> {_annotation(signature.return_annotation)}"
    )
    line = f"{path}({', '.join(parts)}){returned}"
    if len(line) > WIDTH:
        line = f"{path}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"
    return f"```python\n{line}\n```"


def _parameters(given: Iterable[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for each in given:
        if each.kind is each.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {_annotation(each.annotation)}"
        yield f"{stars}{each.name}{kind}{_default(each)}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    written = repr(parameter.default)
    is_plain = not written.startswith("<") and len(written) <= MAX_CONSTANT
    return f" = {written}" if is_plain else " = ..."


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown, with its settings as a list. Its links are those of a page in docs/."""
    text = _SETTING.sub(lambda found: f"- `{found[1]}`: {' '.join(found[2].split())}", docstring)
    return re.sub(r"\]\((?=[\w-]+\.md)", "](../", text)
