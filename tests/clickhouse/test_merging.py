"""Edits of several servers at once: none is lost, and all servers agree in the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore_app.clickhouse.cluster import sharing
from hookcore_app.clickhouse.cluster.sharing import History, SharedPage
from hookcore_app.runs.edits import changes, merged
from tests.lanes import examples


def test_only_local_changes_are_merged_into_the_newest_content() -> None:
    before = {"name": "run", "notes": "", "tags": ["a"], "annotations": {"1": "x", "2": "y"}}
    mine = {**before, "notes": "mine", "annotations": {"2": "y", "3": "z"}}
    newest = {"name": "theirs", "notes": "theirs", "annotations": {"1": "x", "2": "y", "4": "w"}, "later": 1}
    expected = {"name": "theirs", "notes": "mine", "annotations": {"2": "y", "3": "z", "4": "w"}, "later": 1}
    assert merged(before, mine, newest) == expected
    assert merged(*changes(before, mine), newest) == expected


def test_lists_of_equals_are_merged_and_histories_are_not() -> None:
    before = {"tags": ["a", "b"], "mutes": [{"rule": "dead"}], "rules": [[1, {}]]}
    mine = {"tags": ["a", "c"], "mutes": [{"rule": "dead"}, {"rule": "flat"}], "rules": [[1, {}], [2, {}]]}
    newest = {"tags": ["a", "b", "d"], "mutes": [], "rules": [[1, {}], [3, {}]]}
    expected = {"tags": ["a", "d", "c"], "mutes": [{"rule": "flat"}], "rules": [[1, {}], [2, {}]]}
    assert merged(before, mine, newest) == expected


def test_a_repeated_change_yields_to_a_later_one_of_the_same_thing() -> None:
    before, mine = {"name": "", "notes": ""}, {"name": "mine", "notes": "mine"}
    assert merged(before, mine, {"name": "theirs", "notes": ""}, yields=True) == {"name": "theirs", "notes": "mine"}


def test_a_change_of_what_a_version_lacks_completely_is_merged_into_it() -> None:
    before, mine = {"annotations": {"1": "x"}, "tags": ["a"]}, {"annotations": {"1": "x", "2": "y"}, "tags": ["a", "b"]}
    newest = {"name": "theirs"}
    expected = {"name": "theirs", "annotations": {"2": "y"}, "tags": ["b"]}
    assert merged(*changes(before, mine), newest, yields=True) == expected


class _Server:
    """A server over a table of pages that it sees now and then."""

    def __init__(self, table: list[SharedPage]) -> None:
        self.table, self.history, self.content = table, History(), dict[str, Any]()

    def look(self, upto: int | None = None) -> None:
        seen = self.table[:upto]
        newest = max(seen, key=lambda page: page.version, default=None)
        if newest is not None and newest.version > self.history.version:
            self.content, mended = self.history.follow(newest)
            if mended != self.content:
                self.write(mended)

    def write(self, content: dict[str, Any]) -> None:
        self.history.write(self.table, 0, 1, self.content, content)  # type: ignore[arg-type]
        self.content = content


ACTIONS = ["annotate", "tag", "name", "look", "late"]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["annotate", "tag", "name", "look", "late"])), max_size=40)
)
def test_no_edit_of_several_servers_is_lost_whatever_each_has_seen(what: list[tuple[int, str]]) -> None:
    table: list[SharedPage] = []
    now = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "save_page", lambda shard, _day, page: shard.append(_as_stored(page)))
        patch.setattr(sharing.time, "time_ns", lambda: now[0])
        servers = [_Server(table) for _ in range(3)]
        for number, (who, action) in enumerate(what):
            now[0] += 10
            server, before = servers[who], json.loads(json.dumps(servers[who].content))
            if action == "annotate":
                server.write({**before, "annotations": {**before.get("annotations", {}), str(number): "x"}})
            elif action == "tag":
                server.write({**before, "tags": [*before.get("tags", []), str(number)]})
            elif action == "name":
                server.write({**before, "name": str(number)})
            else:
                server.look(len(table) // 2 if action == "late" else None)
        for _ in range(12):
            for server in servers:
                now[0] += 10
                server.look()
        written = len(table)
        for server in servers:
            server.look()
    assert len(table) == written, "they agree"
    assert all(server.content == servers[0].content for server in servers)
    done = {action: {str(number) for number, (_, each) in enumerate(what) if each == action} for _, action in what}
    assert set(servers[0].content.get("annotations", {})) == done.get("annotate", set())
    assert set(servers[0].content.get("tags", [])) == done.get("tag", set())
    assert not done.get("name") or servers[0].content["name"] in done["name"]


def _as_stored(page: SharedPage) -> SharedPage:
    return page._replace(content=json.loads(json.dumps(page.content)))
