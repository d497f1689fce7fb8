"""The answers of the server as TypeScript types, for the checker of the scripts: `python -m tests.answer_types`."""

from __future__ import annotations

import json
import re
from typing import Any, Final, get_args

from hookcore.reading import answers
from hookcore.reading.answers.base import Answer
from hookcore.reading.answers.live import Messages
from hookcore.records.vocabulary import KIND_WORDS, SAMPLES_RATE, STEPS_RATE, SYSTEM, TIME
from hookcore_app import assets
from hookcore_app.main import create_app
from hookcore_app.runs import Runs
from hookcore_app.settings import ServerSettings

FILE: Final = assets.FOLDER / "js" / "answers.d.ts"
VOCABULARY: Final = assets.FOLDER / "js" / "vocabulary.js"
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
    """Return the text of the module with the words for kinds, and the names that scripts know."""
    lines = (f"  {kind}: {json.dumps(words)}," for kind, words in KIND_WORDS.items())
    return "\n".join(
        (
            "// @ts-check",
            "/** Generated from hookcore/records/vocabulary.py by `make format`. */",
            "/** What a kind is called. @type {Record<string, string>} */",
            "export const KIND_WORDS = {",
            *lines,
            "};",
            "/** How the names begin of what is sampled from the machine. */",
            f"export const SYSTEM = {json.dumps(SYSTEM)};",
            "/** When each step ended, and how fast the training is. */",
            f"export const TIME = {json.dumps(TIME)};",
            f"export const STEPS_RATE = {json.dumps(STEPS_RATE)};",
            f"export const SAMPLES_RATE = {json.dumps(SAMPLES_RATE)};",
            "",
        )
    )


if __name__ == "__main__":
    VOCABULARY.write_text(vocabulary(), "utf-8")
    FILE.write_text(declarations(), "utf-8")
