"""Names of the tokens and samples of a batch: in snapshots, after a restart, and over REST."""

from __future__ import annotations

import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.delivery.archive import read_archive
from hookcore.errors import ArgumentError
from hookcore.records import Names, Snapshot, Tap
from hookcore.records.moments import MOMENT_TYPE
from hookcore.store import Store
from hookcore_app.analysis.tiles import named
from hookcore_app.serving import server_thread
from tests.api_world import World
from tests.inside import module_of
from tests.waiting import wait_for

SNAPSHOTS: Any = module_of("BatchNames")
WORDS = [["the", "cat", "sat"], ["a", "dog", "ran"]]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        mixed, _ = self.attention(hidden, hidden, hidden, average_attn_weights=False)
        return self.head(mixed)


def train(watcher: hookcore.Watcher, model: nn.Module, *batches: list[list[str]] | None, passes: int = 1) -> None:
    """Train one step per batch, and take a snapshot of each. None stands for a batch without names."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for words in batches:
        for kind, index in (("output", "1"), ("output_grad", "0")):
            watcher.request_snapshot("attention", kind, index)
        watcher.request_snapshot("head", "param", "weight")
        optimizer.zero_grad()
        for _ in range(passes):
            if words is not None:
                watcher.tokens(words)
                watcher.labels(["one", "two"])
            model(torch.randint(0, 10, (2, 3))).square().mean().backward()
        optimizer.step()


def names_in(store: Store) -> dict[tuple[int, str], Names | None]:
    given = {(each.step, each.tap.kind): each.names for each in store.snapshots()}
    return {key: None if names is not None and names.origin else names for key, names in given.items()}


@pytest.mark.parametrize("attach", ["global", "module"])
def test_a_snapshot_has_the_names_of_its_own_batch_and_never_those_of_another(attach: Any) -> None:
    model = Reader()
    with hookcore.watch(model, server=None, budget=None, attach=attach) as watcher:
        train(watcher, model, WORDS, None, WORDS[::-1])
    first = Names((("the", "cat", "sat"), ("a", "dog", "ran")), labels=("one", "two"))
    last = Names((("a", "dog", "ran"), ("the", "cat", "sat")), labels=("one", "two"))
    found = names_in(watcher.store)
    assert found == {
        **{(0, kind): first for kind in ("output", "output_grad")},
        **{(1, kind): None for kind in ("output", "output_grad")},
        **{(2, kind): last for kind in ("output", "output_grad")},
        **{(step, "param"): None for step in range(3)},
    }


def test_the_gradients_of_several_batches_in_a_step_have_no_names() -> None:
    model = Reader()
    with hookcore.watch(model, server=None, budget=None) as watcher:
        train(watcher, model, WORDS, passes=2)
    found = names_in(watcher.store)
    assert found[0, "output"] == Names((("the", "cat", "sat"), ("a", "dog", "ran")), labels=("one", "two"))


def run(names: Any, kind: str, step: int) -> Names | None:
    """Return the names of a tensor in a forward pass of a model, or of its gradient."""
    names.enters()
    inside = names.of(kind, step)
    names.leaves()
    return names.of(kind, step) if kind.endswith("grad") else inside


def test_names_belong_to_the_next_pass() -> None:
    names = SNAPSHOTS.BatchNames()
    names.begin_step(0, captured=False)
    names.give_tokens(["x"], 0)
    names.give_labels(["a"], 0)
    given = Names((("x",),), True, ("a",))
    assert names.of("output", 0) is None  # nothing runs
    names.enters()
    names.enters()  # a model inside another one
    assert names.of("output", 0) == given
    names.leaves()
    names.leaves()
    assert names.of("output_grad", 0) == given
    assert names.of("param", 0) is None
    assert run(names, "output", 0) is None  # a pass of this model or of another one
    assert names.of("output_grad", 0) is None
    names.give_labels(["b"], 0)
    assert run(names, "output", 0) == Names((), False, ("b",))
    assert names.of("output_grad", 0) is None  # from the first pass or the third one


def test_the_end_of_a_step_may_be_noticed_late() -> None:
    names = SNAPSHOTS.BatchNames()
    names.begin_step(1, captured=True)
    run(names, "output", 1)
    names.give_labels(["c"], 1)
    names.begin_step(2, captured=True)
    assert run(names, "output_grad", 2) == Names((), False, ("c",))
    names.give_labels(["d"], 2)
    names.begin_step(3, captured=False)  # its passes were not seen
    assert run(names, "output", 3) is None
    names.give_labels(["e"], 3)
    for step in (4, 5):  # no model ran, or none was seen
        names.begin_step(step, captured=True)
    assert run(names, "output", 5) is None


def test_calls_outside_of_a_model_and_those_in_another_thread_have_no_names() -> None:
    names = SNAPSHOTS.BatchNames()
    names.begin_step(0, captured=True)
    names.give_labels(["a"], 0)
    names.enters()
    thread = threading.Thread(target=lambda: seen.append(names.of("output", 0)))
    seen: list[Names | None] = []
    thread.start()
    thread.join()
    names.saw_call()
    names.leaves()
    assert seen == [None]
    assert names.of("output_grad", 0) is not None
    names.saw_call()  # a pass of an encoder, for example, with another batch
    assert names.of("output", 0) is None
    assert names.of("output_grad", 0) is None
    names.begin_step(1, captured=True)
    thread = threading.Thread(target=lambda: names.give_labels(["of another thread"], 1))
    thread.start()
    thread.join()
    assert run(names, "output", 1) is None


def test_anything_but_a_list_of_names_is_reported_and_changes_nothing() -> None:
    names = SNAPSHOTS.BatchNames()
    for wrong in (torch.ones(3), "the cat", 3, [["a"], "b"]):
        with pytest.raises(ArgumentError, match="tokens"):
            names.give_tokens(wrong, 0)
    with pytest.raises(ArgumentError, match="tolist"):
        names.give_labels(list(torch.ones(3)), 0)
    names.give_tokens(np.array([["a", "b"]]), 0)
    assert run(names, "output", 0) == Names((("a", "b"),))
    names.give_tokens([b"a", b"b"], 0)
    assert run(names, "output", 0) == Names(((b"a", b"b"),), True)  # type: ignore[arg-type]
    model = Reader()
    with hookcore.watch(model, server=None) as watcher:
        watcher.tokens(torch.ones(2, 3))  # type: ignore[arg-type]
        assert "give a list of names" in watcher.errors[0].message
        train(watcher, model, None)
    assert watcher.current_step == 1


def test_names_are_bounded_and_missing_ones_are_reported() -> None:
    row = tuple("x" * 500 for _ in range(1000))
    kept, left = SNAPSHOTS.plain_names(Names((row,) * 30, labels=("é", "\udcff", 7)))  # type: ignore[arg-type]
    assert 0 < len(kept.tokens) < 30
    assert {len(text) for text in kept.tokens[0]} == {100}
    assert left == f"{30 - len(kept.tokens)} of 30 samples without tokens"
    assert kept.labels == ("é", "\\udcff", "7")
    assert SNAPSHOTS.plain_names(Names(labels=("y",) * SNAPSHOTS.MAX_NAMED_BYTES)) == (Names(), "too many labels")


def snapshot_of(shape: tuple[int, ...], names: Names, values: Any = None) -> Snapshot:
    values = np.random.default_rng(0).normal(size=shape) if values is None else values
    return Snapshot(Tap("m", "output"), 0, 0.0, "float64", shape, values, names=names)


def test_a_dimension_is_named_only_if_it_is_unambiguous() -> None:
    of_three = Names((("a", "b", "c"), ("d", "e", "f")), labels=("one", "two"))
    maps = np.full((2, 4, 3, 3), 1 / 3)
    assert named(snapshot_of((2, 4, 3, 3), of_three, maps)).axes == (2, 3)
    assert named(snapshot_of((2, 3, 3, 3), of_three, np.full((2, 3, 3, 3), 1 / 3))).axes == (2, 3)
    assert named(snapshot_of((2, 3, 8), of_three)).axes == (1,)
    assert named(snapshot_of((2, 4, 3, 8), of_three)).axes == (2,)
    several = named(snapshot_of((2, 3, 3), of_three))  # positions by channels, or channels by positions
    assert (several.axes, several.tokens) == ((), ())
    assert "several dimensions" in several.why
    assert "no dimension" in named(snapshot_of((2, 5, 8), of_three)).why
    assert "Tokens of 2 samples were given for 1" in named(snapshot_of((1, 3, 8), of_three)).why
    other = named(snapshot_of((4, 3, 8), of_three))
    assert (other.axes, other.labels, other.why) == ((1,), (), "2 labels for 4 samples: give one for each sample.")
    ragged = named(snapshot_of((2, 3, 8), Names((("a",), ("b", "c", "d")))))
    assert (ragged.axes, "different numbers" in ragged.why) == ((), True)
    shared = named(snapshot_of((4, 3, 8), Names((("a", "b", "c"),), True)))
    assert [shared.tokens_of(sample) for sample in (0, 3)] == [("a", "b", "c")] * 2
    assert other.tokens_of(3) == ()


def test_names_survive_a_restart(tmp_path: Path) -> None:
    model = Reader()
    with hookcore.watch(model, server=None, budget=None, keep=tmp_path) as watcher:
        train(watcher, model, WORDS)
    (folder,) = tmp_path.iterdir()
    kept = {each.tap.kind: each.names for each in read_archive(folder).snapshots() if each.dtype != MOMENT_TYPE}
    assert kept == {kind: names for (_, kind), names in names_in(watcher.store).items()}


def test_rest_returns_names_and_a_rollout_has_those_of_its_sample() -> None:
    world = World()
    maps = np.full((2, 1, 3, 3), 1 / 3)
    names = Names((("a", "b", "c"), ("d", "e", "f")), labels=("one", "two"))
    for number, layer in enumerate(("layers.0", "layers.1")):
        tap = Tap(layer, "output")
        world.run.store.add_snapshot(Snapshot(tap, 4, 0.0, "float64", maps.shape, maps, number=number, names=names))
    said = world.json("snapshots/1/names")
    assert (said["axes"], said["tokens"][1], said["labels"]) == ([2, 3], ["d", "e", "f"], ["one", "two"])
    assert {each["number"]: each["named"] for each in world.json("snapshots", match="layers.*")["snapshots"]}[1]
    rollout = world.json("attention-rollout", sample=1)
    assert (rollout["tokens"], rollout["label"]) == (["d", "e", "f"], "two")


def test_a_client_has_the_names_that_a_trainer_sent() -> None:
    server, model = server_thread.start(port=0), Reader()
    with hookcore.watch(model, server="thread", budget=None, keep=None) as watcher:
        train(watcher, model, WORDS)
        assert watcher.flush()
        client = watcher.client()
        wait_for(lambda: len(client.snapshots()) == 3)
        number = {each.tap.kind: each.number for each in client.snapshots() if each.named}["output"]
        said = client.snapshot_names(number)
    server.stop()
    assert (said.axes, said.tokens, said.shared) == ((2, 3), tuple(map(tuple, WORDS)), False)


# Names that nobody gave.

itos = {number: f"w{number}" for number in range(10)}


def read_by_itself(monkeypatch: pytest.MonkeyPatch, labels: bool = False, **script: Any) -> Names | None:
    """Return the names in an automatic snapshot of a model of ids, in a script with these variables."""
    for name, value in script.items():
        monkeypatch.setitem(vars(sys.modules["__main__"]), name, value)
    model = Reader()
    with hookcore.watch(model, server=None, budget=None, snapshot_every=1) as watcher:
        if labels:
            watcher.labels(["one", "two"])
        model(torch.tensor([[1, 2, 3], [4, 5, 6]])).sum().backward()
        watcher.step()
        watcher.flush()
    (found,) = (each for each in watcher.store.snapshots() if each.tap.label == "attention output [1]")
    assert watcher.errors == []
    assert named(found).axes == (2, 3)
    return found.names


def test_without_tokens_of_the_script_the_ids_of_the_batch_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (("1", "2", "3"), ("4", "5", "6"))
    assert read_by_itself(monkeypatch) == Names(ids, origin="ids of the batch")
    assert read_by_itself(monkeypatch, labels=True) == Names(ids, labels=("one", "two"), origin="ids of the batch")
    assert read_by_itself(monkeypatch, itos={1: "only one"}) == Names(ids, origin="ids of the batch")  # of other ids


def test_ids_are_read_by_a_table_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (("w1", "w2", "w3"), ("w4", "w5", "w6"))
    expected = Names(words, origin="ids of the batch, read by itos of the script")
    assert read_by_itself(monkeypatch, itos=itos) == expected
    assert read_by_itself(monkeypatch, itos=list(itos.values())) == expected


def test_a_tokenizer_that_only_a_collate_function_knows_reads_the_ids_unless_another_one_disagrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizers = import_module("tokenizers")
    transformers = import_module("transformers")

    def tokenizer_of(words: list[str]) -> Any:
        model = tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0])
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))

    collate = partial(zip, tokenizer_of(list(itos.values())))  # never called

    found = read_by_itself(monkeypatch)
    assert found is not None
    assert found.tokens == (("w1", "w2", "w3"), ("w4", "w5", "w6"))
    assert found.origin == f"ids of the batch, read by {type(collate.args[0]).__name__}"
    other = tokenizer_of([f"v{number}" for number in range(10)])
    disputed = read_by_itself(monkeypatch)
    assert disputed == Names((("1", "2", "3"), ("4", "5", "6")), origin="ids of the batch")
    assert other is not None


def test_what_is_no_text_has_no_tokens() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with hookcore.watch(model, server=None, budget=None, snapshot_every=1) as watcher:
        model(torch.randn(2, 3)).sum().backward()
        watcher.step()
        watcher.flush()
    assert [each.names for each in watcher.store.snapshots()] == [None, None]
