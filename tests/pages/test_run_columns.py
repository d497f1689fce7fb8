"""The columns of the list of runs: chosen ones, those with differences, their order, and archived runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hookcore_app.pages.views.run_list import (
    MAX_CHOICES,
    MAX_COLUMNS,
    ListColumns,
    columns_of,
    differences_of,
    order_of,
)
from hookcore_app.runs.query import Traits
from tests.build import append, open_run
from tests.serving import World, make_world

RUNS: dict[str, dict[str, Any]] = {
    "one": {"config": {"lr": 0.5, "seed": 1, "act": "relu", "x,y": 1}, "tags": ("a",)},
    "two": {"config": {"lr": 0.25, "seed": 1, "act": "<gelu>"}},
    "three": {"facts": {"optimizer": "SGD"}},
}


@pytest.fixture
def world() -> World:
    world = make_world()
    for place, (name, about) in enumerate(RUNS.items()):
        append(open_run(world.runs, name, started_s=float(place), **about).store, 0, [], scalars={"loss": 1.0 + place})
    return world


def columns(world: World, *asked: str) -> ListColumns:
    return columns_of(asked, [Traits(run) for run in world.runs.all()])


def names(world: World, *asked: str) -> list[str]:
    return [column.name for column in columns(world, *asked).shown]


def listed(world: World, **query: Any) -> list[str]:
    return re.findall(r'data-run="(\w+)"', world.client.get("/", params=query).text)


def test_values_that_differ_between_runs_are_shown_by_default(world: World) -> None:
    assert names(world) == ["tags", "lr", "seed", "act", "x,y"]  # the third has no configuration
    world.runs.remove("three")
    world.runs.remove("one")
    assert names(world) == ["lr", "seed", "act"]  # nothing differs in a single run, so all its values are shown
    assert not columns(world).chosen


def test_a_column_shows_by_itself_if_a_third_of_the_listed_runs_have_it_and_tags_follow_the_name(world: World) -> None:
    for number in range(4):
        open_run(world.runs, f"more-{number}", config={"lr": number, "rare": number} if number < 2 else {"lr": number})
    assert names(world) == ["tags", "lr"]  # 2 of 7 runs have `rare`, and 2 have `seed`; a single run has tags
    text = world.client.get("/").text
    headings = re.findall(r'data-sort="-?(\w+)"', text)
    assert headings.index("tags") == headings.index("name") + 1
    assert [
        column.name for column in columns_of((), [Traits(run) for run in world.runs.all() if "more" in run.id]).shown
    ] == [
        "lr",
        "rare",
    ]


def test_chosen_columns_come_in_the_order_of_the_address_and_commas_in_names_are_not_separators(world: World) -> None:
    token = next(column.token for column in columns(world).shown if column.name == "x,y")
    assert names(world, f"loss,{token},lr") == names(world, "loss", f"{token},lr") == ["loss", "x,y", "lr"]
    assert names(world, "-") == []
    assert names(world, "lr,lr,to-come") == ["lr", "to-come"]
    assert names(world, "*") == names(world)
    assert not columns(world, "*").chosen
    assert columns(world, "lr").chosen


def test_a_configuration_value_may_share_the_name_of_a_run_field(world: World) -> None:
    open_run(world.runs, "four", config={"name": "zz", "state": 7}, name="aa")
    text = world.client.get("/", params={"columns": "name,state"}).text
    assert re.findall(r'<span class="text line">(\w+)</span>', text) == ["zz"]
    assert 'data-sort="=name"' in text
    assert 'data-sort="-started"' in text or 'data-sort="started"' in text
    assert listed(world, sort="=name")[0] == "four"


def test_columns_and_choices_are_bounded_and_the_rest_is_counted(world: World) -> None:
    asked = ",".join(map(str, range(99)))
    assert len(names(world, asked)) == MAX_COLUMNS
    assert [column.name for column in columns(world, asked).beyond] == list(map(str, range(MAX_COLUMNS, 99)))
    text = world.client.get("/", params={"columns": asked}).text
    assert "room for 20 of these columns. Hidden: 20, 21," in text
    assert re.findall(r'data-column="(\d+)"', text) == list(map(str, range(99))), "a move keeps them all"
    for number in range(MAX_CHOICES // 250 + 1):
        open_run(world.runs, f"many-{number}", config={f"{number}-{each}": each for each in range(250)})
    many = columns(world)
    assert sum(map(len, many.choices.values())) == MAX_CHOICES
    assert many.more > 0


def test_any_column_can_be_moved_to_any_place(world: World) -> None:
    def headings(columns: str) -> list[str]:
        text = world.client.get("/", params={"columns": columns}).text
        items = re.findall(r'<li id="order-(\w+)"(.*?)</li>', text, re.DOTALL)
        assert [name for name, _ in items] == columns.split(",")
        assert [item.count("disabled") for _, item in items] == [1, 0, 1]
        return [
            name
            for name in re.findall(r'data-sort="-?(\w+)"', text)
            if name in (*columns.split(","), "loss", "started")
        ]

    assert headings("act,tags,lr") == ["loss", "act", "tags", "lr", "started"]
    assert headings("act,lr,tags") == ["loss", "act", "lr", "started", "tags"]  # tags, group, notes: near the end


def test_a_page_shows_values_and_escapes_them(world: World) -> None:
    text = world.client.get("/", params={"columns": "lr,act,loss"}).text
    assert "&lt;gelu&gt;" in text
    assert "<gelu>" not in text
    assert re.findall(r'<span class="key">lr</span> ([\d.]+)', text) == ["0.25", "0.5"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("lr", ["two", "one", "three"]),  # runs without a value come last
        ("-lr", ["one", "two", "three"]),
        ("act", ["two", "one", "three"]),
        ("-loss", ["three", "two", "one"]),
        ("started", ["three", "two", "one"]),
        ("nonsense", ["three", "two", "one"]),
    ],
)
def test_any_value_sorts_the_list(world: World, sort: str, order: list[str]) -> None:
    assert listed(world, sort=sort) == order


def test_numbers_sort_before_texts_and_nan_after_other_numbers() -> None:
    values = ["b", float("nan"), 2, True, "A", -1.5]
    assert [str(each) for each in sorted(values, key=order_of)] == ["-1.5", "True", "2", "nan", "A", "b"]


def test_archived_runs_are_listed_when_a_query_asks_for_them(world: World) -> None:
    world.client.patch("/api/v1/runs/one", json={"archived": True})
    assert listed(world) == ["three", "two"]
    assert "1 archived" in world.client.get("/").text
    assert listed(world, f="archived:true") == ["one"]
    assert listed(world, f="archived:false") == ["three", "two"]
    world.client.patch("/api/v1/runs/one", json={"name": "archived-model", "notes": "archived"})
    assert listed(world, f="archived") == listed(world, f="notes:archived") == []  # a text, not the query
    assert "1 archived" in world.client.get("/", params={"f": "archived"}).text
    assert world.client.get("/api/v1/runs").json()["total"] == 3  # REST also lists archived runs
    assert world.client.get("/api/v1/runs", params={"query": "archived:false"}).json()["total"] == 2


def test_tags_group_and_notes_are_edited_and_wrong_ones_refused(world: World) -> None:
    said = {"tags": ["b", "c", "b"], "group": "g", "notes": "n"}
    run = world.client.patch("/api/v1/runs/two", json=said).json()
    assert (run["tags"], run["group"], run["notes"], run["name"]) == (["b", "c"], "g", "n", "two")
    assert world.client.patch("/api/v1/runs/two", json={"tags": []}).json()["tags"] == []
    for wrong in ({"tags": [""]}, {"tags": ["x" * 51]}, {"tags": ["x"] * 21}, {"archived": 1}, {"group": "x" * 201}):
        assert world.client.patch("/api/v1/runs/two", json=wrong).status_code == 422


SETTINGS: dict[str, dict[str, Any]] = {
    "a": {"config": {"lr": 0.001, "act": "relu", "seed": 1}, "facts": {"optimizer": "SGD", "optimizer.lr": 0.001}},
    "b": {"config": {"lr": 0.1, "act": "gelu", "seed": 1}, "facts": {"optimizer": "SGD", "optimizer.lr": 0.1}},
    "c": {"config": {"lr": 1, "act": "relu", "seed": 1, "extra": True}, "facts": {"optimizer": "Adam"}},
}


def test_the_columns_of_the_optimizer_show_all_optimizers_of_a_run_and_sort_by_the_first() -> None:
    world = make_world()
    first = {"optimizer": "Adam", "optimizer.lr": 0.001}
    second = {"optimizer2": "SGD", "optimizer2.lr": 0.01, "optimizer3": "Adagrad"}
    for name, facts in (("gan", first | second), ("other", {"optimizer": "Lion", "optimizer.lr": 0.5})):
        append(open_run(world.runs, name, facts=facts).store, 0, [], scalars={"loss": 1.0})
    text = world.client.get("/", params={"sort": "-facts:optimizer.lr"}, headers={"Accept": "text/html"}).text
    cells = [
        " ".join(re.sub("<[^>]*>", " ", each).split())
        for each in re.findall(r'(?s)<td role="cell" class="value.*?</td>', text)
    ]
    assert cells == ["optimizer Lion", "lr 0.5", "optimizer Adam, SGD, Adagrad", "lr 0.001, 0.01, none"]


def test_what_differs_is_listed_once_without_equal_settings_and_facts_that_always_differ() -> None:
    world = make_world()
    for name, about in SETTINGS.items():
        facts = about["facts"] | {"git.commit": name, "optimizer.lr": about["config"]["lr"]}
        append(open_run(world.runs, name, config=about["config"], facts=facts).store, 0, [], scalars={"loss": 1.0})
    runs = [Traits(run) for name in SETTINGS if (run := world.runs.get(name)) is not None]
    found = differences_of(runs)
    assert [(each.name, each.source) for each in found] == [
        ("lr", "config"),
        ("act", "config"),
        ("extra", "config"),
        ("optimizer", "facts"),
    ]
    assert found[2].values == {"c": True}
    assert differences_of(runs[:1]) == []


def test_the_table_of_what_differs_has_pages_and_ends_with_the_result() -> None:
    world = make_world()
    for name, factor in (("one", 1), ("two", 2)):
        config = {f"setting{place}": factor * place for place in range(1, 151)}
        append(open_run(world.runs, name, config=config).store, 0, [], scalars={"loss": float(factor)})

    def rows(**query: str | int) -> list[str]:
        asked = {"part": "differences", "shown": "one,two,gone", "result": "loss", **query}
        text = world.client.get("/", params=asked, headers={"Accept": "text/html"}).text
        assert text.count('data-run="') == 2
        return re.findall(r'<tr><th scope="row" title="([^"]*)"', text)

    assert rows() == [*(f"setting{place}" for place in range(1, 61)), "loss"]
    assert rows(row=120) == [*(f"setting{place}" for place in range(121, 151)), "loss"]
