"""The types, words, and limits that the scripts share with the server: `python -m tests.answer_types` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, get_args

from hookcore.config.patterns import MAX_LENGTH
from hookcore.reading import answers
from hookcore.reading.answers.base import Answer
from hookcore.reading.answers.live import Messages
from hookcore.reading.answers.series import MAX_HISTOGRAMS, MAX_SCALARS
from hookcore.records import ROOT
from hookcore.records.vocabulary import KIND_WORDS, SAMPLES_RATE, STEPS_RATE, SYSTEM, TIME
from hookcore_app import assets
from hookcore_app.analysis import overlay
from hookcore_app.api import compare as overlays
from hookcore_app.api import params, runs, series
from hookcore_app.api import runs as saved
from hookcore_app.live import views as requests
from hookcore_app.main import create_app
from hookcore_app.pages import frame
from hookcore_app.pages.views import run_list, span
from hookcore_app.runs import Runs, shelf
from hookcore_app.serving.guard import security
from hookcore_app.settings import ServerSettings

# What the scripts must share with the server: each value, with its meaning.
WORDS: Final[dict[str, tuple[str | int | tuple[str, ...], str]]] = {
    "ROOT": (ROOT, "The root module, whose path is empty"),
    "SYSTEM": (SYSTEM, "How the names begin of what is sampled from the machine"),
    "TIME": (TIME, "When each step ended"),
    "STEPS_RATE": (STEPS_RATE, "How fast the training is"),
    "SAMPLES_RATE": (SAMPLES_RATE, "The same, in samples"),
    "GRADIENT_NORM": (overlay.GRADIENT_NORM, "The norm of all gradients, as a line of several runs"),
    "LIVE_STEPS": (span.LIVE_STEPS, "How many steps of a live run are shown"),
    "NO_COLUMNS": (run_list.NONE, "No column of the list of runs, in an address"),
    "AUTO_COLUMNS": (run_list.AUTO, "Those columns that differ, also for a browser that remembers others"),
    "VIEW_NAMES": (" ".join(saved.RunsView.model_fields), "What of the address of the Runs page a view has"),
    "THEMES": (frame.THEMES, "The themes, in turn"),
    "THEME_COOKIE": (frame.THEME_COOKIE, "The cookie with the chosen theme"),
    "PARTIAL": (security.PARTIAL, "The header that says what is missing in an answer"),
}
LIMITS: Final[dict[str, tuple[str | int | tuple[str, ...], str]]] = {
    "MAX_PAGE": (params.MAX_PAGE, "Items of an answer that has a next one"),
    "MAX_LISTED_RUNS": (runs.MAX_LISTED, "Runs of an answer"),
    "MAX_OVERLAID_RUNS": (overlays.MAX_RUNS, "Runs whose lines are in one answer"),
    "MAX_LATEST": (series.MAX_LATEST, "Tensors of an answer with newest values"),
    "MAX_SCALARS": (MAX_SCALARS, "Series of scalars in an answer"),
    "MAX_POINTS": (series.MAX_POINTS, "Points of a series"),
    "MAX_HISTOGRAMS": (MAX_HISTOGRAMS, "Tensors of an answer with histograms"),
    "MAX_HISTOGRAM_COLUMNS": (series.MAX_HISTOGRAM_COLUMNS, "Histograms of a tensor"),
    "MAX_CHANNEL_ROWS": (series.MAX_CHANNEL_ROWS, "Rows of the values of a probe"),
    "MAX_LIVE_ROWS": (requests.MAX_ROWS, "Rows of a subscription"),
    "MAX_ID": (requests.MAX_ID, "The largest number of a subscription"),
    "MAX_PATTERN": (MAX_LENGTH, "Characters of what a find box or the palette is asked"),
    "MAX_CHART_NAME": (shelf.MAX_NAME, "Characters of the name of a chart on the board"),
    "MAX_CHART_QUERY": (shelf.MAX_CHART, "Characters of its query"),
}
HEAD: Final = """\
/** Generated from hookcore/reading/answers by `make format`: the answers of REST, and the messages of the socket. */
"""
PREFIX: Final = "/api/v1/"
_NAMES: Final = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def declarations() -> str:
    """Return the text of the file."""
    settings = ServerSettings()
    described = create_app(Runs(settings), settings).openapi()
    classes = [each for each in vars(answers).values() if isinstance(each, type) and issubclass(each, Answer)]
    kinds = answers.components([*classes, Messages])
    omitted = {each.__name__ for each in (*classes, *get_args(Messages)) if each.__struct_config__.omit_defaults}
    types = [f"export type {name} = {_type_of(kind, name in omitted)};" for name, kind in sorted(kinds.items())]
    messages = " | ".join(sorted(name for name in kinds if name.endswith("Message")))
    paths = {path: _answer_of(methods) for path, methods in described["paths"].items() if path.startswith(PREFIX)}
    by_path = _by_path({path.removeprefix(PREFIX): answer for path, answer in paths.items() if answer is not None})
    return "\n".join((HEAD, *types, f"export type Message = {messages};", *by_path, ""))


def _answer_of(methods: dict[str, Any]) -> str | None:
    """Return the type of the answer to GET; None if there is no GET."""
    if "get" not in methods:
        return None
    found = next(answer for code, answer in methods["get"]["responses"].items() if code.startswith("2"))
    return _type_of(found.get("content", {}).get("application/json", {}).get("schema", {}))


def _by_path(answers_by_path: dict[str, str]) -> list[str]:
    """Return the type of an answer by its path. The first line that fits decides, so the longest paths come first."""
    longest = sorted(answers_by_path, key=lambda path: (-path.count("/"), "{" in path, path))
    lines = (f"  P extends `{re.sub(r'{[^}]*}', '${string}', path)}` ? {answers_by_path[path]} :" for path in longest)
    return [
        "/** The answer to GET of a path below api/v1. */",
        "export type AnswerOf<P extends string> =",
        *lines,
        "  unknown;",
    ]


def _type_of(schema: dict[str, Any], omits_defaults: bool = False) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " | ".join(_type_of(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return _array_of(schema)
    if schema.get("type") == "object":
        return _object_of(schema, omits_defaults)
    return _NAMES.get(schema.get("type", ""), "unknown")


def _array_of(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type_of(each) for each in schema['prefixItems'])}]"
    return f"Array<{_type_of(schema.get('items', {}))}>"


def _object_of(schema: dict[str, Any], omits_defaults: bool) -> str:
    if "properties" not in schema:
        values = schema.get("additionalProperties")
        return f"Record<string, {_type_of(values) if isinstance(values, dict) else 'unknown'}>"
    optional = schema["properties"].keys() - schema.get("required", ()) if omits_defaults else ()
    fields = (f"{name}{'?' * (name in optional)}: {_type_of(field)}" for name, field in schema["properties"].items())
    return f"{{ {'; '.join(fields)} }}"


def vocabulary() -> str:
    """Return the text of the module with the words that scripts share with the server."""
    kinds = (f"  {kind}: {json.dumps(words)}," for kind, words in KIND_WORDS.items())
    head = "/** Generated by `make format`: words that the server uses too. */"
    named = "/** What a kind is called. @type {Record<string, string>} */"
    paths = (f"  {tab.page}: {json.dumps(tab.path.lstrip('/'))}," for tab in frame.TABS.values())
    places = "/** Where the pages of a run are, below the run. @type {Record<string, string>} */"
    both = (named, "export const KIND_WORDS = {", *kinds, "};", places, "export const PATHS = {", *paths, "};")
    return "\n".join((head, *both, *_constants(WORDS)))


def limits() -> str:
    """Return the text of the module with the server's limits."""
    head = "/** Generated by `make format`: limits of the server, which refuses a request for more. */"
    return "\n".join((head, *_constants(LIMITS)))


def _constants(of: dict[str, tuple[str | int | tuple[str, ...], str]]) -> list[str]:
    lines = []
    for name, (value, about) in of.items():
        typed = " @type {readonly string[]}" if isinstance(value, tuple) else ""
        lines += [f"/** {about}.{typed} */", f"export const {name} = {json.dumps(value)};"]
    return [*lines, ""]


def generated() -> dict[Path, str]:
    """Return the text of each file that is generated for the scripts."""
    folder = assets.FOLDER / "js"
    return {
        folder / "answers.d.ts": declarations(),
        folder / "limits.js": limits(),
        folder / "vocabulary.js": vocabulary(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, "utf-8")
