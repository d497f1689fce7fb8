"""Rules of the architecture: imports between rooms, registration of hooks, public names, and the wheel's contents."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

import hookcore
from benchmarks.house import python_in, single_children
from hookcore.config import NOT_GIVEN, SETTINGS, WatchSettings
from hookcore.hooks import internals
from tests.project import PROJECT, PYPROJECT

ROOT = Path(__file__).parents[2]

# Each room, also inside another one, with the rooms that it may import.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "platform": set(),
    "records": {"errors"},
    "config": {"errors", "records"},
    "records.wire": {"errors", "records"},
    "delivery.dashboard": {"platform", "errors", "config", "records", "records.wire"},
    "config.patterns": {"errors", "config"},
    "store.incidents": {"records"},
    "observe.layout": {"records"},
    "observe.portable": {"records", "observe.layout"},
    "observe.cpu": {"records", "observe.layout", "observe.portable"},
    "store": {"errors", "records", "config", "config.patterns", "store.incidents", "observe.cpu"},
    "findings": {"errors", "records", "config", "store.incidents", "store"},
    "delivery": {
        "platform",
        "store.incidents",
        "errors",
        "records",
        "config",
        "records.wire",
        "delivery.dashboard",
        "store",
        "findings",
    },
    "delivery.notify": {"errors", "records"},
    "delivery.archive": {"platform", "errors", "records", "records.wire", "store", "delivery", "delivery.dashboard"},
    "reading.anatomy": {"records"},
    "reading.answers": {"errors", "records", "records.wire", "store", "store.incidents", "reading.anatomy"},
    "reading": {
        "platform",
        "config",
        "errors",
        "records",
        "store.incidents",
        "config.patterns",
        "delivery.dashboard",
        "store",
        "reading.answers",
    },
    "observe": {"hooks.internals", "errors", "records", "config", "observe.cpu", "observe.layout"},
    "hooks.internals": set(),
    "hooks": {"platform", "hooks.internals", "errors", "records"},
    "hooks.tracing": {"hooks.internals", "errors", "config", "config.patterns", "observe", "hooks"},
    "recorder.machine": {"records"},
    "recorder": {
        "findings",
        "platform",
        "hooks.internals",
        "errors",
        "records",
        "config",
        "delivery",
        "config.patterns",
        "observe",
        "observe.cpu",
        "observe.layout",
        "hooks",
        "probes",
        "records.wire",
        "recorder.machine",
    },
    "watcher": {
        "platform",
        "errors",
        "records",
        "config",
        "records.wire",
        "delivery.dashboard",
        "store",
        "delivery",
        "delivery.notify",
        "delivery.archive",
        "reading.answers",
        "reading",
        "hooks",
        "recorder",
        "capsules",
        "probes",
        "findings.ownrules",
    },
    "probes": {"errors", "config", "config.patterns", "records", "observe", "hooks", "hooks.internals"},
    "findings.ownrules": {"errors", "records"},
    "capsules": {
        "hooks.internals",
        "errors",
        "records",
        "config",
        "records.wire",
        "delivery.dashboard",
        "store",
        "reading.answers",
        "observe",
        "observe.cpu",
        "hooks",
        "recorder",
    },
    "frameworks": {"records", "config", "reading.answers", "watcher"},
    "commands": {
        "hooks.internals",
        "errors",
        "records",
        "records.wire",
        "config",
        "delivery",
        "delivery.dashboard",
        "reading",
        "observe",
        "observe.cpu",
        "hooks",
        "recorder",
        "watcher",
    },
    "__main__": set(),
    "__init__": {"errors", "reading", "findings.ownrules", "hooks", "hooks.tracing", "probes", "watcher"},
}
WITHOUT_TORCH = {
    "platform",
    "errors",
    "records",
    "config",
    "records.wire",
    "delivery.dashboard",
    "config.patterns",
    "store.incidents",
    "observe.layout",
    "observe.portable",
    "observe.cpu",
    "store",
    "findings",
    "delivery",
    "delivery.notify",
    "delivery.archive",
    "reading.anatomy",
    "reading.answers",
    "reading",
    "findings.ownrules",
    "commands.run",
    "__init__",
}
WEB = {"app", "hookcore_app", "fastapi", "starlette", "uvicorn", "jinja2"}


def _room_of(file: Path) -> str:
    return _room(".".join(file.relative_to(ROOT).with_suffix("").parts))


def _room(name: str) -> str:
    """Return the innermost room of a module, given its full name."""
    parts = name.split(".")[1:3] or ["__init__"]
    return inner if (inner := ".".join(parts)) in ROOMS else parts[0]


def _files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


@cache
def _imports(file: Path) -> frozenset[str]:
    """Return every module that a file imports anywhere, including imports only for types."""
    found = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return frozenset(found)


def _edges(files: list[Path]) -> dict[str, set[str]]:
    """Return the imports between these files, including imports only for types."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name, file in names.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(_tree(file)):
            for target in _targets(node, package):
                while target and target not in names:
                    target = target.rpartition(".")[0]
                edges[name] |= {target} - {name, ""}
    return edges


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


def _circle(edges: dict[str, set[str]]) -> set[str]:
    """Remove all files that no remaining file imports, or that import no remaining one. The others form a cycle."""
    left = set(edges)
    while True:
        imported = set().union(*(edges[name] & left for name in left)) if left else set()
        kept = {name for name in left if edges[name] & left and name in imported}
        if kept == left:
            return left
        left = kept


def _calls(file: Path) -> Iterator[str]:
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node.func.id


def test_the_top_level_is_as_specified() -> None:
    """Where a FastAPI developer looks for them, whatever else is beside them."""
    for folder in ("app", "app/static", "app/templates", "hookcore", "tests"):
        assert (ROOT / folder).is_dir(), folder
    for file in ("pyproject.toml", "Dockerfile", "app/static/js/api.js", "app/templates/base.html"):
        assert (ROOT / file).is_file(), file


def test_every_room_is_in_the_plan() -> None:
    assert {_room_of(file) for file in _files("hookcore")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    files = [file for file in _files("hookcore") if _room_of(file) == room]
    assert files
    for file in files:
        known = {_room(name) for name in _imports(file) if name.startswith("hookcore.")}
        assert known <= ROOMS[room] | {room}, f"{file.relative_to(ROOT)} imports {sorted(known - ROOMS[room])}"


def test_the_plan_of_rooms_has_no_cycle() -> None:
    above: dict[str, set[str]] = {}
    while len(above) < len(ROOMS):
        free = {room for room in ROOMS if room not in above and ROOMS[room] <= set(above)}
        assert free, f"these rooms import each other in a cycle: {sorted(set(ROOMS) - set(above))}"
        above |= {room: ROOMS[room] for room in free}


def test_no_files_import_each_other_in_a_cycle() -> None:
    """Imports for types count, too: two files that need each other's names are really one file.

    The file with the public names is exempt: it loads them on first use, and other files read its version.
    """
    public = ROOT / "hookcore" / "__init__.py"
    assert not _circle(_edges([file for file in _files("hookcore") + _files("app") if file != public]))


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_rooms_that_the_server_needs_import_no_torch(room: str) -> None:
    place = ROOT / "hookcore" / room.replace(".", "/")
    for file in (file for file in _files("hookcore") if place in (file.with_suffix(""), *file.parents)):
        assert not [name for name in _imports(file) if name.split(".")[0] in ("torch", "numba", "triton")], file


def test_hookcore_imports_no_web_framework_and_no_server() -> None:
    for file in _files("hookcore"):
        assert not WEB & {name.split(".")[0] for name in _imports(file)}, file


def test_the_server_imports_no_torch_and_only_the_torchless_rooms_of_hookcore() -> None:
    for file in _files("app"):
        for name in _imports(file):
            assert name.split(".")[0] not in ("torch", "hookcore_app", "app"), f"{file} imports {name}"
            if name.startswith("hookcore"):
                rooms = {_room(name), ".".join(name.split(".")[1:3])}
                assert rooms & WITHOUT_TORCH, f"{file} imports {name}"


def test_importing_the_torchless_rooms_loads_no_torch() -> None:
    code = f"""
import sys
from importlib import import_module
for room in {sorted(WITHOUT_TORCH - {"__init__"})}:
    import_module(f"hookcore.{{room}}")
    if found := {{"torch", "numba"}} & set(sys.modules):
        sys.exit(f"{{room}} loads {{sorted(found)}}")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_importing_hookcore_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, hookcore; sys.exit(' '.join(sorted({'torch', 'numba', 'numpy'} & set(sys.modules))) or None)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_only_one_room_registers_torch_hooks() -> None:
    for file in _files("hookcore") + _files("app"):
        hooking = [call for call in _calls(file) if re.fullmatch(r"(register|queue)_\w*(hook|callback)s?", call)]
        name = str(file.relative_to(ROOT))
        if not name.startswith("hookcore/hooks/"):
            assert not hooking, f"{name} calls {hooking}"


def _private_names_of_torch(file: Path) -> Iterator[str]:
    """Return the private names that a file imports from torch, or reads from something that it imported from there."""
    tree = _tree(file)
    of_torch = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = f"{module}.{alias.name}".removeprefix(".")
                if name.split(".")[0] == "torch":
                    of_torch.add(alias.asname or (alias.name if module else "torch"))
                    yield from (name for part in name.split(".") if part.startswith("_") and part != "__version__")
    for node in ast.walk(tree):
        if of_torch and isinstance(node, ast.Attribute) and re.fullmatch(r"_(?!_).*", node.attr):
            name = ast.unparse(node)
            if re.fullmatch(r"[\w.]+", name) and name.split(".")[0] in of_torch:
                yield name


def test_only_one_file_uses_private_names_of_torch() -> None:
    """Attributes of objects, such as `tensor._version`, don't count: they could be the user's or hookcore's own."""
    for file in _files("hookcore") + _files("app"):
        if file != ROOT / "hookcore/hooks/internals.py":
            assert not list(_private_names_of_torch(file)), file


OF_THE_TRAINING = {"getstate", "setstate"}  # the functions of Python's global generator that draw nothing


def test_nothing_draws_from_pythons_global_generator_in_a_training() -> None:
    for file in _files("hookcore"):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                assert node.attr in OF_THE_TRAINING | {"Random", "SystemRandom"}, f"{file}: random.{node.attr}"
            assert not (isinstance(node, ast.ImportFrom) and node.module == "random"), file


def test_a_missing_private_name_is_explained() -> None:
    with pytest.raises(
        ImportError, match=r"torch 2\..* has no torch\._C\._no_such_name, which hookcore needs: use a rel"
    ):
        internals.required(torch._C, "_no_such_name")


MAX_ATTRIBUTES = 14
# Each is used by a single class: the store, the class that cuts segments for ClickHouse, the clock, and the keeper.
WIDE = {"Parts", "Feed", "Owner", "Call"}
ASKED_TO_STOP = {"should_stop", "should_training_stop"}  # the interface of Lightning and of transformers


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the class itself declares or assigns."""
    stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    names = {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}
    return names | {each.id for each in fields if isinstance(each, ast.Name)}


def _files_of_the_recorder() -> list[Path]:
    return [file for file in _files("hookcore") if _room_of(file) in ("recorder", "delivery", "frameworks", "watcher")]


def test_no_attribute_is_written_from_another_room_and_no_private_one_from_another_file() -> None:
    """Inside a room, classes may write each other's public attributes, because a setter method would add nothing."""
    trees = {file: _tree(file) for file in _files_of_the_recorder()}
    own = {
        file: {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in _own_attributes(node)}
        for file, tree in trees.items()
    }
    for file, tree in trees.items():
        near = {
            each
            for other in own
            if _room_of(other) == _room_of(file)
            for each in own[other]
            if not each.startswith("_")
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                mine = own[file] | near | ASKED_TO_STOP
                assert node.attr in mine, f"{file.relative_to(ROOT)} writes {ast.unparse(node)}"


COMPUTING = {"app/pages/compare.py", "app/pages/views/events.py"}  # with columns of all taps
STORES_OWN = {"incidents", "captured", "usage", "dropped_alerts", "taps_announced"}  # docs/architecture.md says why


def test_pages_reports_and_figures_use_a_reader_and_never_a_store() -> None:
    """They may pass a run's store to rules and to `app/analysis`, which need columns of all taps."""
    for folder in ("app/pages", "app/analysis/figures"):
        for file in (each for each in _files(folder) if str(each.relative_to(ROOT)) not in COMPUTING):
            assert not {"hookcore.store.Store", "hookcore.store.store.Store"} & _imports(file), file
            for node in ast.walk(_tree(file)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "store":
                    assert node.attr in STORES_OWN, f"{file.relative_to(ROOT)}: {ast.unparse(node)}"


def test_no_attribute_of_a_store_is_written_from_outside() -> None:
    for file in _files("hookcore") + _files("app"):
        if _room_of(file) not in ("store", "store.incidents"):
            for node in ast.walk(_tree(file)):
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                    named = ast.unparse(node)
                    assert not ast.unparse(node.value).endswith("store"), f"{file.relative_to(ROOT)} writes {named}"


def _is_record(node: ast.ClassDef) -> bool:
    """Return whether a class is plain data: it never changes, or has no methods."""
    head = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases, *node.keywords)))
    is_frozen = "frozen=True" in head or "NamedTuple" in head
    return is_frozen or not any(isinstance(each, ast.FunctionDef) for each in node.body)


def test_no_class_has_more_than_about_a_dozen_public_attributes() -> None:
    for file in _files("hookcore") + _files("app"):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ClassDef) and not _is_record(node) and node.name not in WIDE:
                public = {name for name in _own_attributes(node) if not name.startswith("_")}
                assert len(public) <= MAX_ATTRIBUTES, f"{node.name} in {file.name} has {sorted(public)}"


MAX_GIVEN = 5


def test_no_part_of_the_recorder_is_given_more_than_a_few_others() -> None:
    """What many parts use is in the context, and what sees the training in the capture."""
    for file in _files("hookcore/recorder"):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                given = [each.arg for each in node.args.args[1 : len(node.args.args) - len(node.args.defaults)]]
                assert len(given) <= MAX_GIVEN, f"{file.relative_to(ROOT)}:{node.lineno} takes {given}"


def test_only_one_module_knows_what_one_operating_system_has() -> None:
    for file in _files("hookcore") + _files("app"):
        if file != ROOT / "hookcore/platform.py":
            assert not _imports(file) & {"fcntl", "msvcrt", "resource"}, file


# What tests may import of hookcore: packages, *faces*, which are the modules that another room or a user's script
# imports, and *seams*. The other modules can be renamed, cut, and merged without a change in a test.
FOR_USERS = {"hookcore.commands.demo", *(f"hookcore.frameworks.{file.stem}" for file in _files("hookcore/frameworks"))}
SEAMS = {
    # the kernels besides the extension: tests compare each with the others
    "hookcore.observe.portable",
    "hookcore.observe.reference",
    "hookcore.observe.triton_kernel",
}


def _module_file(name: str) -> Path:
    return ROOT / f"{name.replace('.', '/')}.py"


@cache
def _exported(package: str) -> str:
    """Return the text of a package's own file, which is empty for a module."""
    file = ROOT / package.replace(".", "/") / "__init__.py"
    return file.read_text() if file.exists() else ""


# By text, because parsing all tests takes seconds, and because some tests write scripts.
IMPORTED = re.compile(r"\bfrom (hookcore[\w.]*) import (\([^)]*\)|[^\n;\\\"]*)")
REPLACED = re.compile(r"setattr\(\"(hookcore[\w.]*)\.\w+\"")  # of a test that replaces a name in a module
PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\.(_(?!_)\w*[^\W_])\b|\bfrom hookcore[\w.]* import .*\b(_(?!_)\w+)")
DEFINED = re.compile(r"(?:\bdef |\bclass |\bself\.|^ *)(_(?!_)\w+)\b(?! *\.)", re.MULTILINE)


@cache
def _modules_inside(file: Path) -> list[str]:
    """Return the modules inside packages of hookcore that a file imports, or from which it imports."""
    text, found = file.read_text(), []
    found += filter(_is_module, REPLACED.findall(text))
    for package, names in IMPORTED.findall(text):
        if _is_module(package):
            found.append(package)
        else:
            inner = {name for name in re.findall(r"\w+", names) if f'"{name}"' not in _exported(package)}
            found += sorted(f"{package}.{name}" for name in inner if _is_module(f"{package}.{name}"))
    return found


@cache
def _is_module(name: str) -> bool:
    return _module_file(name).exists()


@cache
def _faces() -> set[str]:
    files = [(file, _room_of(file)) for file in _files("hookcore")] + [(file, "app") for file in _files("app")]
    imported = {(name, room) for file, room in files for name in (*_modules_inside(file), *_loaded_later(file))}
    return {name for name, room in imported if _room(name) != room} | FOR_USERS


def _loaded_later(file: Path) -> list[str]:
    return [name for name in re.findall(r'import_module\("(hookcore[\w.]*)"\)', file.read_text()) if _is_module(name)]


def test_every_face_and_every_seam_is_described() -> None:
    assert all(_module_file(each).read_text().startswith('"""') for each in _faces() | SEAMS)


def test_the_tests_import_packages_faces_and_seams_only() -> None:
    allowed = _faces() | SEAMS
    inner = [(str(file.relative_to(ROOT)), name) for file in _files("tests") for name in _modules_inside(file)]
    assert not [each for each in inner if each[1] not in allowed], (
        "import from a package or a face, or use tests/inside.py"
    )


def test_the_tests_read_no_private_names() -> None:
    """The names of hookcore and its app. Others, such as `_forward_hooks` and `_fields`, are torch's or Python's."""
    own = {name for file in _files("hookcore") + _files("app") for name in DEFINED.findall(file.read_text())}
    own -= {*dir(nn.Linear(1, 1)), *dir(torch.ones(1)), *dir(torch), *dir(NamedTuple("Pair", []))}
    inner = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in _files("tests")
        for name in map("".join, PRIVATE.findall(file.read_text()))
        if name in own
    ]
    assert not inner, "test behavior, or use a public name or tests/inside.py"


def test_the_legacy_backward_hook_is_never_registered() -> None:
    for file in _files("hookcore") + _files("app"):
        legacy = {"register_backward_hook", "register_module_backward_hook"} & set(_calls(file))
        assert not legacy, f"{file.relative_to(ROOT)} calls {legacy}"


MAX_LINES = 600  # where a reader begins to ask whether a file is still one idea
ONE_IDEA = {  # longer: a table, or one class, with a method for each question that it answers or each call of its users
    "hookcore/findings/advice.py",
    "hookcore/findings/rules.py",
    "hookcore/probes.py",
    "hookcore/reading/client.py",
    "hookcore/recorder/clock/steady.py",
    "hookcore/store/store.py",
    "hookcore/watcher/watcher.py",
}


def test_no_file_is_longer_than_a_reader_would_ask_about() -> None:
    for file in _files("hookcore") + _files("app"):
        lines, name = len(file.read_text().splitlines()), str(file.relative_to(ROOT))
        assert lines <= MAX_LINES or name in ONE_IDEA, f"{name} has {lines} lines: is it still one idea?"


def test_no_class_is_cut_into_bases_that_have_a_single_child() -> None:
    assert single_children(python_in("hookcore", "app")) == []


MAX_COLUMNS = 120  # as in Python, where ruff checks it
URL = re.compile(r"https?://\S+")


def test_no_line_of_a_script_or_a_style_sheet_is_too_long_unless_its_url_is() -> None:
    ours = [path for folder in ("app/static", "app/templates", "tests") for path in (ROOT / folder).rglob("*.*")]
    files = [path for path in ours if path.suffix in (".js", ".mjs", ".css") and "vendor" not in path.parts]
    assert len(files) > 150
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(URL.sub("", line)) > MAX_COLUMNS
    ]
    assert not long, f"these lines have more than {MAX_COLUMNS} columns: {', '.join(long)}"


def test_there_are_no_star_imports() -> None:
    for file in _files("hookcore") + _files("app"):
        assert not [name for name in _imports(file) if name.endswith(".*")], file


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(hookcore.__all__) == [
        "ArgumentError",
        "Client",
        "ClosedError",
        "HookError",
        "HookcoreError",
        "PatternError",
        "Problem",
        "ServerError",
        "StopTraining",
        "TraceError",
        "Watcher",
        "WireError",
        "__version__",
        "detached",
        "hooks",
        "probes",
        "rule",
        "trace",
        "watch",
    ]
    assert all(getattr(hookcore, name) is not None for name in hookcore.__all__)
    assert sorted(hookcore.__all__) == dir(hookcore)


def test_the_parameters_of_watch_equal_the_table_of_settings_in_types_and_descriptions() -> None:
    hints = get_type_hints(WatchSettings)
    parameters = dict(inspect.signature(hookcore.watch).parameters)
    assert parameters.pop("model").kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters.pop("unknown").annotation == "Never"
    assert list(parameters) == list(hints) == [setting.name for setting in SETTINGS]
    assert {parameter.default for parameter in parameters.values()} == {NOT_GIVEN}
    found = get_type_hints(hookcore.watch, localns={"Watcher": hookcore.Watcher})  # imported only when a watch begins
    assert {name: found[name] for name in hints} == hints
    words = " ".join((hookcore.watch.__doc__ or "").split())
    for setting in SETTINGS:
        assert _admits(hints[setting.name], setting.default), setting.name
        sentence = setting.help.split(". ")[0].removesuffix(".")
        assert f" {setting.name}={setting.default!r}: {sentence}." in words


def _admits(hint: Any, value: Any) -> bool:
    """Return whether a type accepts a value. It may be a union, a Literal, an iterable of Literals, or a class."""
    if get_origin(hint) in (Union, UnionType):
        return any(_admits(each, value) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is Iterable:
        return isinstance(value, tuple) and all(_admits(get_args(hint)[0], each) for each in value)
    return isinstance(value, get_origin(hint) or hint)


def test_an_argument_of_watch_overrides_its_variable_and_a_missing_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKCORE_EVERY", "7")
    monkeypatch.setenv("HOOKCORE_CALLS", "3")
    with hookcore.watch(nn.Linear(1, 1), every=2) as watcher:
        assert (watcher.settings.every, watcher.settings.calls) == (2, 3)


def test_an_unknown_setting_of_watch_gets_the_nearest_as_a_hint() -> None:
    with pytest.raises(hookcore.ArgumentError, match=r"'evry' is not a setting.* Did you mean 'every'"):
        hookcore.watch(nn.Linear(1, 1), evry=2)  # type: ignore[arg-type]


def test_the_first_line_of_watch_says_that_a_process_starts() -> None:
    first = (hookcore.watch.__doc__ or "").splitlines()[0]
    assert "start a dashboard process" in first


def test_an_unknown_name_of_hookcore_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wacth'"):
        _ = hookcore.wacth


def test_the_project_file_lists_every_package() -> None:
    folders = [file.parent.relative_to(ROOT) for folder in ("hookcore", "app") for file in _files(folder)]
    packages = {".".join(folder.parts).replace("app", "hookcore_app", 1) for folder in folders if "app" in folder.parts}
    packages |= {".".join(folder.parts) for folder in folders if "app" not in folder.parts}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages


def test_the_project_file_lists_every_file_that_is_no_code() -> None:
    listed = PYPROJECT["tool"]["setuptools"]["package-data"]
    missing = []
    for folder, patterns in ((ROOT / "hookcore", listed["hookcore"]), (ROOT / "app", listed["hookcore_app"])):
        installed = {file for pattern in patterns for file in folder.glob(pattern.replace("**", "**/*"))}
        files = {file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
        missing += [file for file in files - installed if file.suffix not in {".py", ".c", ".h", ".so"}]
    assert missing == []


def test_every_direct_dependency_is_pinned_for_the_checks() -> None:
    wanted = [*PROJECT["dependencies"], *itertools.chain.from_iterable(PROJECT["optional-dependencies"].values())]
    names = {re.split(r"[<>=;\[ ]", each, maxsplit=1)[0].lower() for each in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if not line.startswith("#")]
    assert names <= {name.lower() for name, _ in pinned}
    assert pinned[0] == ["torch", "2.13.0"]


def test_no_fixture_of_a_file_replaces_one_that_surrounds_every_test() -> None:
    around = ROOT / "tests/around.py"
    fixtures = _fixtures(around)
    assert "no_leaked_hooks" in fixtures
    # pytest finds functions of a file and names that it imports, which take one line or several.
    names = "|".join(fixtures)
    own = re.compile(rf"^(?:def ({names})\(|.*\bimport\b.*\b({names})\b|    ({names}),$)", re.MULTILINE)
    others = (file for file in _files("tests") if file != around)
    assert not [(file.name, found) for file in others if (found := own.findall(file.read_text()))]


def _fixtures(file: Path) -> set[str]:
    found = [node for node in _tree(file).body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in found if any("pytest.fixture" in ast.unparse(each) for each in node.decorator_list)}
