"""A page's script is all of its modules joined into one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hookcore_app import assets, pages
from hookcore_app.assets import join

MAX_PAGE = 60_000  # compressed bytes of the page's script, without Plotly
PAGES = sorted((assets.FOLDER / "js" / "pages").glob("*.js"))


def run(files: dict[str, str], folder: Path) -> str:
    """Run the joined script of main.js, and return its output."""
    whole = join("main.js", files.__getitem__)
    script = folder / "main.js"
    script.write_text(whole.script())
    (folder / "package.json").write_text('{"type": "module"}')
    for name in whole.parts:
        part = folder / "main" / name
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(whole.script(name))
    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_exports_of_a_module_are_available_under_each_imported_name(tmp_path: Path) -> None:
    files = {
        "main.js": 'import {\n  Box,\n  LEAST as least,\n} from "./of/box.js";\n'
        'import { twice } from "./again.js";\n'
        'import { later } from "./of/later.js";\n'
        "console.log(new Box(least).open(), twice(4), typeof later);",
        "of/box.js": 'import { twice } from "../again.js";\n'
        "const value = 1; // of this module alone\n"
        "export const LEAST = value + 1;\n"
        "export class Box {\n"
        "  constructor(held) {\n    this.held = held;\n  }\n\n"
        "  open() {\n    return twice(this.held);\n  }\n"
        "}",
        "again.js": 'export { twice } from "./of/numbers.js";',
        "of/numbers.js": "const value = 2;\nexport function twice(number) {\n  return value * number;\n}",
        "of/later.js": 'export async function later() {\n  return "later";\n}',
    }
    assert run(files, tmp_path) == "4 8 function\n"


def test_a_module_runs_once_and_after_its_imports(tmp_path: Path) -> None:
    files = {
        "main.js": 'import { a } from "./a.js";\nimport { b } from "./b.js";\nconsole.log(a, b);',
        "a.js": 'import { once } from "./once.js";\nexport const a = once.push(1);',
        "b.js": 'import { once } from "./once.js";\nexport const b = once.push(1);',
        "once.js": "export const once = [];",
    }
    assert run(files, tmp_path) == "1 2\n"


def test_a_module_that_is_imported_late_shares_all_others_with_the_page(tmp_path: Path) -> None:
    files = {
        "main.js": '/** The page. */\nimport { once } from "./once.js";\n  // Later.\n'
        'const late = () => import("./of/late.js");\n'
        'late().then(({ b, twice }) => console.log(once.length, twice("// b"), b === once))\n'
        '  .then(() => import("./early.js")).then(({ early }) => console.log(early));\n',
        "once.js": "/**\n * Comments **are**\n * left out. */\nexport const once = [1];",
        "early.js": "export const early = 3;",
        "of/late.js": 'import { twice } from "./deep.js";\nimport { once } from "../once.js";\n'
        'export const b = once;\nb.push(2);\nexport { twice } from "./deep.js";',
        "of/deep.js": "export function twice(text) {\n  return text + text; // as it is\n}",
    }
    assert run(files, tmp_path).splitlines() == ["2 // b// b true", "3"]
    whole = join("main.js", files.__getitem__)
    assert "Comments" not in whole.script()
    assert "as it is" not in whole.script("of/late.js")
    assert "const once_js" not in whole.script("of/late.js")


def test_modules_that_are_imported_late_share_one_copy_of_what_the_page_does_not_have(tmp_path: Path) -> None:
    files = {
        "main.js": 'import("./one.js").then(async (one) => {\n  const two = await import("./of/two.js");\n'
        "  console.log(one.push(), await two.push());\n});",
        "one.js": 'import { list } from "./of/shared.js";\nexport function push() {\n  return list.push(1);\n}',
        "of/two.js": 'import { list } from "./shared.js";\nexport async function push() {\n'
        '  const { third } = await import("./three.js");\n  return list.push(third(await import("../one.js")));\n}',
        "of/three.js": 'import { list } from "./shared.js";\nexport function third(one) {\n'
        "  return one.push() + list.length;\n}",
        "of/shared.js": "export const list = [];",
    }
    assert run(files, tmp_path) == "1 3\n"
    whole = join("main.js", files.__getitem__)
    assert whole.parts == {"one.js", "of/two.js", "of/three.js", "of/shared.js"}
    assert "const of_shared_js" not in whole.script() + whole.script("one.js") + whole.script("of/three.js")


@pytest.mark.parametrize(
    "form", ["import * as a from './a.js';", "export default 1;", 'import "./a.js";', "export { a };"]
)
def test_unsupported_syntax_is_refused_with_its_line(form: str) -> None:
    with pytest.raises(ValueError, match=re.escape(form)):
        join("main.js", {"main.js": form}.__getitem__)


def test_modules_that_import_each_other_are_refused_by_name() -> None:
    files = {"main.js": 'import { a } from "./a.js";', "a.js": 'import { b } from "./main.js";\nexport const a = 1;'}
    with pytest.raises(ValueError, match=re.escape("main.js -> a.js -> main.js")):
        join("main.js", files.__getitem__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_the_script_of_each_page_is_complete(page: Path, tmp_path: Path) -> None:
    found = assets.read(f"joined/{page.name}")
    assert found is not None
    script = tmp_path / "page.mjs"
    script.write_bytes(found.content)
    done = subprocess.run(["node", "--check", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in join(f"js/pages/{page.name}", lambda name: (assets.FOLDER / name).read_text()).parts:
        part = assets.read(f"joined/{page.stem}/{name}")
        assert part is not None
        assert len(part.content) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_the_script_of_each_page_is_small_because_the_rest_is_imported_late(page: Path) -> None:
    found = assets.read(f"joined/{page.name}")
    assert found is not None
    assert len(found.squeezed) <= MAX_PAGE


def test_an_unknown_page_has_no_script() -> None:
    assert assets.read("joined/nowhere.js") is None
    assert assets.read("joined/flow/js/dom.js") is None  # no page imports it lazily


def test_scripts_of_pages_are_read_in_advance() -> None:
    assets.read.cache_clear()
    pages.prepare()
    asked = assets.read.cache_info().misses
    for name in ("app.css", "css/card.css", "joined/flow.js", "vendor/plotly-cartesian.min.js"):
        assert assets.read(name) is not None
    assert assets.read.cache_info().misses == asked
