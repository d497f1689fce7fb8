"""Groups of runs in the list, and saved views of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hookcore.errors import ArgumentError
from hookcore_app import assets
from hookcore_app.api.runs import RunsView
from hookcore_app.pages.views.run_list import groupings_of, groups_of, line_of
from hookcore_app.runs.query import Traits
from hookcore_app.runs.shelf import MAX_VIEWS, VIEWS_FILE, Views
from tests.build import append, open_run
from tests.serving import World, make_world


@pytest.fixture
def world() -> World:
    world = make_world()
    for place, (lr, act) in enumerate([(1, "relu"), (0.1, "relu"), (1.0, "gelu"), (None, "relu"), (10, "relu")]):
        config: dict[str, Any] = {"act": act, "seed": place, "same": 3} | ({} if lr is None else {"lr": lr})
        run = open_run(world.runs, f"run-{place}", config=config, started_s=float(place))
        append(run.store, 0, [], scalars={"loss": float(place)})
    return world


def groups_in(world: World, by: str) -> list[tuple[str, list[str]]]:
    traits = [Traits(run) for run in world.runs.all()]
    lines = [line_of(each.run) for each in traits]
    return [
        (group.title, [run.id for run in group.runs]) for group in groups_of(lines, {t.run.id: t for t in traits}, by)
    ]


def test_runs_are_grouped_by_a_value_numbers_by_their_size_and_those_without_it_last(world: World) -> None:
    assert groups_in(world, "lr") == [
        ("lr 0.1", ["run-1"]),
        ("lr 1", ["run-2", "run-0"]),  # 1 and 1.0 are one group, in the order of the list
        ("lr 10", ["run-4"]),
        ("without lr", ["run-3"]),
    ]
    assert [title for title, _ in groups_in(world, "act")] == ["act gelu", "act relu"]
    assert groups_in(world, "") == [("", [f"run-{place}" for place in (4, 3, 2, 1, 0)])]
    assert groups_in(world, "no such value") == [
        ("without no such value", [f"run-{place}" for place in (4, 3, 2, 1, 0)])
    ]


def test_runs_can_be_grouped_by_settings_that_only_some_of_them_share(world: World) -> None:
    offered = groupings_of([Traits(run) for run in world.runs.all()], "mine")
    assert offered[0] == "mine"
    assert {"lr", "act"} <= set(offered)
    assert not {"seed", "same"} & set(offered)  # each its own, and all the same


def test_the_page_shows_groups_with_the_range_of_their_losses(world: World) -> None:
    page = world.client.get("/", params={"group": "lr"}).text
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "lr 1 2 runs · loss 0 to 2" in text
    assert page.index('id="run-run-1"') < page.index('id="run-run-2"') < page.index('id="run-run-4"')


def test_a_group_and_a_query_have_a_page_that_says_which_run_is_best_also_without_a_script(world: World) -> None:
    page = world.client.get("/", params={"group": "lr", "f": "same:3"}).text
    assert 'href="group?f=%28same%3A3%29%20lr%3D0.1"' in page
    assert page.count('href="group?f=%28') == 3, "no query finds the runs without a value"
    open_run(world.runs, "other", config={"lr": 1})
    found = world.client.get("/group", params={"f": "act=relu"}).text
    words = " ".join(re.sub(r"<[^>]*>", " ", found).split())
    assert "Runs with act=relu" in words
    assert re.search(r"\w+ \w+ is best of 4, with recent loss 0\.", words), words
    assert "run-2" not in found.partition('id="runs"')[2]
    highest = world.client.get("/group", params={"f": "act=relu", "better": "high"}).text
    assert re.search(r"is best of 4, with recent loss 4\.", highest)
    named = world.client.get("/group", params={"f": 'group="my sweep"'}).text
    assert "Group my sweep" in named
    assert "Two runs are needed" in named


def test_views_are_saved_listed_and_deleted(world: World) -> None:
    view = {"name": "by <loss>", "query": "f=tag%3Asweep&sort=loss"}
    assert world.client.put("/api/v1/views", json=view).json() == {"views": [view]}
    page = world.client.get("/").text
    assert 'href="?f=tag%3Asweep&amp;sort=loss"' in page
    assert "by &lt;loss&gt;" in page
    assert world.client.delete("/api/v1/views", params={"name": "by loss"}).status_code == 404
    assert world.client.delete("/api/v1/views", params={"name": view["name"]}).status_code == 204
    assert world.client.get("/api/v1/views").json() == {"views": []}
    assert world.client.put("/api/v1/views", json={"name": "", "query": ""}).status_code == 422


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("f=lr>", "a value is missing after lr>"),
        ("f=" + "a" * 1001, "f: String should have at most 1000 characters"),
        ("metric=(layer)&tap=head+output&stat=nrm", "did you mean 'norm'?"),
        ("srot=loss", "did you mean 'sort'?"),
        ("sort=loss&sort=name", "sort= is given 2 times"),
        ("y=lgo", "y: Input should be '' or 'log'"),
    ],
)
def test_a_view_that_the_page_cannot_show_is_not_saved(world: World, query: str, says: str) -> None:
    answer = world.client.put("/api/v1/views", json={"name": "x", "query": query})
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert world.client.get("/api/v1/views").json() == {"views": []}


def test_a_view_keeps_all_that_the_page_has_in_its_address(world: World) -> None:
    parts = {"f": "lr>1", "columns": ["lr", "*"], "group": "lr", "metric": "loss", "band": "1", "smooth": "20"}
    query = urlencode({**parts, "runs": "run-1,run-2", "y": "log", "by": "time", "steps": "100-200"}, doseq=True)
    assert world.client.put("/api/v1/views", json={"name": "x", "query": query}).status_code == 200
    script = (assets.FOLDER / "js/pages/runs.js").read_text()
    (defaults,) = re.findall(r"open\({(.*?)}\)", script, re.DOTALL)
    assert set(re.findall(r"(\w+): \"", defaults)) <= set(RunsView.model_fields)


def test_views_survive_a_restart_and_a_damaged_file_loses_only_them(tmp_path: Path) -> None:
    Views(tmp_path / "new").save("b", "sort=loss")
    Views(tmp_path / "new").save("A", "")
    assert dict(Views(tmp_path / "new").all()) == {"A": "", "b": "sort=loss"}
    (tmp_path / VIEWS_FILE).write_text('{"fine": "f=x", "odd": 3, "' + "n" * 200 + '": ""}')
    assert dict(Views(tmp_path).all()) == {"fine": "f=x"}
    (tmp_path / VIEWS_FILE).write_text("not json")
    assert not Views(tmp_path).all()


def test_the_number_of_views_is_limited() -> None:
    views = Views(None)
    for number in range(MAX_VIEWS):
        views.save(str(number), "")
    views.save("0", "sort=loss")  # replacing the one before
    with pytest.raises(ArgumentError, match="delete one first"):
        views.save("one more", "")
