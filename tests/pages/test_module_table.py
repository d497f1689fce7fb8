"""The table of modules on the Capture page: grown to a tree, folded, opened and closed, filtered, sorted, and paged."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from hookcore.records import Coverage, ModuleRecord
from hookcore_app.analysis.modules import (
    Branch,
    Folds,
    ModuleRow,
    TreeRow,
    every_branch,
    fold_alike,
    grow,
    shown_rows,
)
from tests.build import append, open_run
from tests.serving import World, make_world


def row(path: str, type: str = "Linear", parent: str | None = None, captured: bool = True) -> ModuleRow:
    return ModuleRow(path, type, parent, captured, (), "" if captured else "it was never called", 0, 0, 0)


def shown(roots: list[Branch], sort: str = "", folds: str = "") -> list[TreeRow]:
    return shown_rows(roots, lambda _path: True, sort, Folds.read(folds))[0]


def paths(rows: list[TreeRow]) -> list[str]:
    return [each.branch.path for each in rows]


def some_model(seed: int, size: int = 60) -> list[ModuleRow]:
    """Return a model in torch's order: parents first."""
    dice, children = random.Random(seed), {"": list[ModuleRow]()}
    for _ in range(size):
        parent = dice.choice(list(children))
        name = f"{dice.choice(['', 'abc'])}{len(children[parent])}"
        child = row(f"{parent}.{name}" if parent else name, dice.choice("ABC"), parent, dice.random() < 0.8)
        children[parent].append(child)
        children[child.path] = []

    def below(path: str) -> list[ModuleRow]:
        return [each for child in children[path] for each in (child, *below(child.path))]

    return [row("", "Net"), *below("")]


def blocks() -> list[ModuleRow]:
    rows = [row("", "Net"), row("layers", "List")]
    for number in range(6):
        rows.append(row(f"layers.{number}", "Block"))
        for name in ("attn", "attn.q", "mlp"):
            rows.append(row(f"layers.{number}.{name}", name, captured=(number, name) != (4, "mlp")))
        if number == 3:
            rows.append(row("layers.3.extra"))
    return rows


def test_rows_are_the_modules_in_order_each_indented_by_its_number_of_parents() -> None:
    for seed in range(30):
        rows = some_model(seed)
        found = shown(grow(rows))
        assert paths(found) == [each.path for each in rows]
        assert [each.level for each in found] == [1 + bool(each.path) + each.path.count(".") for each in rows]


def test_a_module_without_its_parent_is_below_its_nearest_listed_ancestor() -> None:
    roots = grow([row("a"), row("a.b.c.d"), row("x.y"), row("GAN/left.0")])
    assert [each.path for each in roots] == ["a", "x.y", "GAN/left.0"]
    assert [each.name for each in roots[0].children] == ["b.c.d"]
    assert len(grow([row("GAN"), row("GAN/left"), row("GAN/left.0")])) == 1


def test_a_closed_group_hides_exactly_its_descendants() -> None:
    rows = some_model(5)
    for closed in grow(rows) + every_branch(grow(rows))[1:]:
        start = f"{closed.path}." if closed.path else ""
        hidden = [each.path for each in rows if each.path != closed.path and each.path.startswith(start)]
        assert paths(shown(grow(rows), folds=closed.id)) == [each.path for each in rows if each.path not in hidden]


def test_matches_are_shown_with_their_groups_and_counted_without_them() -> None:
    for seed in range(20):
        rows = some_model(seed)
        wanted = {each.path for each in rows if each.type == "B"}
        found, matching = shown_rows(grow(rows), wanted.__contains__)
        assert matching == len(wanted)
        assert [each.branch.path for each in found if each.matches] == [
            each.path for each in rows if each.path in wanted
        ]
        assert all(each.matches or each.is_open for each in found)


def test_equal_blocks_are_folded_and_a_different_one_stays_between_them() -> None:
    found = [(each.branch.path, len(each.branch.members)) for each in shown(fold_alike(grow(blocks())))]
    parts = ("", ".attn", ".attn.q", ".mlp")
    assert found == [
        ("", 1),
        ("layers", 1),
        *((f"layers.*{part}", 3) for part in parts),
        *((f"layers.3{part}", 1) for part in (*parts, ".extra")),
        *((f"layers.*{part}", 2) for part in parts),
    ]


def test_folding_neither_loses_nor_adds_modules() -> None:
    for seed in range(30):
        rows = some_model(seed)
        folded = [each.path for root in fold_alike(grow(rows)) for each in root.every()]
        assert sorted(folded) == sorted(each.path for each in rows)


def test_a_closed_group_stands_for_its_worst_module_and_so_does_a_folded_row() -> None:
    closed = shown(grow(blocks()), folds="*none,.")[0]
    assert (closed.is_open, closed.worst("captured").path) == (False, "layers.4.mlp")
    folded = next(each for each in shown(fold_alike(grow(blocks())))[::-1] if each.branch.path == "layers.*.mlp")
    assert folded.worst("captured").path == "layers.4.mlp"


def test_groups_open_to_uncaptured_modules_and_to_nothing_else() -> None:
    found = shown(grow(blocks()), folds="*uncaptured")
    assert "layers.4.mlp" in paths(found)
    assert all(any(not each.captured for each in row.branch.every()) for row in found if row.is_open)


def test_a_group_is_turned_and_turned_back_and_many_turned_groups_fit_an_address() -> None:
    layers = every_branch(grow(blocks()))[1]
    folds = Folds.read(Folds.read("*none").turn(layers))
    assert folds == Folds("none", ("layers",))
    assert folds.turn(layers) == "*none"
    many = Folds("", tuple(f"some.module.of.a.model.{place}" for place in range(1000)))
    assert len(many.turn(layers)) <= 4000
    assert many.turn(layers).endswith(",layers")


def test_sorting_gives_a_list_with_numbers_by_size_and_missing_values_last_in_either_direction() -> None:
    types = ["b", "", "a10", "a2"]
    rows = [replace(row(f"m{place}"), type=type, calls=place) for place, type in enumerate(types)]
    assert [each.branch.members[0].type for each in shown(grow(rows), "type")] == ["a2", "a10", "b", ""]
    assert [each.branch.members[0].type for each in shown(grow(rows), "-type")] == ["b", "a10", "a2", ""]
    assert [each.branch.members[0].calls for each in shown(grow(rows), "-calls")] == [3, 2, 1, 0]


def big_world(modules: int) -> World:
    world = make_world()
    run = open_run(world.runs, "big")
    records = [ModuleRecord(f"layers.{place}", "Linear", None) for place in range(modules)]
    run.store.describe(records, [Coverage(each.path, each.type, True, ("output",)) for each in records])
    append(run.store, 0, [])
    return world


def test_ten_thousand_modules_have_pages_of_rows_and_all_are_reachable() -> None:
    world = big_world(10_000)

    def page(**query: str | int) -> str:
        answer = world.client.get("/runs/big/capture", params={"part": "modules", **query})
        assert answer.status_code == 200
        return answer.text

    for first, modules in ((0, range(200)), (200, range(200, 400)), (9_999, range(9_800, 10_000))):
        text = page(row=first)
        assert re.findall(r'data-path="layers\.(\d+)"', text) == [str(each) for each in modules]
        assert 'aria-rowcount="10001"' in text
        assert f'aria-rowindex="{modules[0] + 2}"' in text
    assert re.findall(r'data-path="layers\.(\d+)"', page(sort="-path"))[0] == "9999"


def test_the_links_of_the_table_keep_the_other_choices() -> None:
    world = big_world(300)
    text = world.client.get("/runs/big/capture", params={"f": "layers.*", "fold": "1", "step": "0"}).text
    link = re.search(r'href="(runs/big/capture\?[^"]*sort=-values[^"]*)"', text)
    assert link
    assert all(each in link[1] for each in ("f=layers.%2A", "fold=1", "step=0"))
