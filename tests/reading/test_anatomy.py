# mypy: disable-error-code="no-untyped-call"
"""A model as boxes: connections on each level compared with their definition, and what folds in real models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hookcore
from hookcore.reading import StoreReader, answers
from hookcore.reading.anatomy import OUTSIDE, Repetition, levels_of, runs_of
from hookcore.records import ModuleRecord
from hookcore.records.flow import CallSize, Flow, FlowCall
from tests.flow_world import BasicBlock, Residual, batch, watch
from tests.inside import module_of

# --- Levels -----------------------------------------------------------------------------------------------------------


@st.composite
def nests(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Draw boxes, each inside a later one like nested calls, and connections, which lead to later boxes."""
    many = draw(st.integers(2, 14))
    inside = [draw(st.sampled_from([OUTSIDE, *range(number + 1, many)])) for number in range(many)]
    ends = [(source, target) for target in range(many) for source in range(target)]
    return inside, draw(st.lists(st.sampled_from(ends), unique=True, max_size=20))


@given(nests())
def test_a_level_has_the_edges_between_its_parts(drawn: tuple[list[int], list[tuple[int, int]]]) -> None:
    inside, fed = drawn

    def within(box: int, around: int) -> bool:
        return (
            around == OUTSIDE
            or box == around
            or (box != OUTSIDE and inside[box] != OUTSIDE and within(inside[box], around))
        )

    def strictly(box: int, around: int) -> bool:
        return box != around and within(box, around)

    found = levels_of(inside, ((source, target, False) for source, target in fed))
    for box in (OUTSIDE, *range(len(inside))):
        parts = [part for part, around in enumerate(inside) if around == box]
        expected: dict[tuple[int, int], set[int]] = {}
        for source, target in fed:
            one = next((part for part in parts if within(source, part)), OUTSIDE)
            other = next((part for part in parts if within(target, part)), OUTSIDE)
            is_own = box == target and bool(parts)
            if one != other and (other != OUTSIDE or strictly(source, box)):
                expected.setdefault((one, other), set()).add(source)
            elif one == other == OUTSIDE and is_own:
                expected.setdefault((OUTSIDE, OUTSIDE), set()).add(source)
        assert {ends: each.carries for ends, each in found.get(box, {}).items()} == expected, box


# --- Runs -------------------------------------------------------------------------------------------------------------


def folded(kinds: str, ends: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    level: Any = dict.fromkeys(ends)
    return [(run.first, run.last, run.period) for run in runs_of(kinds, range(len(kinds)), level)]


def chain(many: int) -> list[tuple[int, int]]:
    return [(OUTSIDE, 0), *((place, place + 1) for place in range(many - 1)), (many - 1, OUTSIDE)]


@pytest.mark.parametrize(
    ("kinds", "ends", "expected"),
    [
        ("aaaa", chain(4), [(0, 4, 1)]),
        ("aa", chain(2), []),
        ("sababab", chain(7), [(1, 7, 2)]),
        ("abcabcabcd", chain(10), [(0, 9, 3)]),
        ("aaabbb", chain(6), [(0, 3, 1), (3, 6, 1)]),
        ("abababx", chain(7), [(0, 6, 2)]),
        ("aaaa", [], [(0, 4, 1)]),  # a tree, without a known flow
        ("reeeec", [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 5), (3, 5), (4, 5)], [(1, 5, 1)]),  # side by side
        ("aaaa", [(0, 1), (1, 2), (2, 3), (0, 3)], []),  # the last one gets the first one's output too
        ("maaaa", [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (0, 3), (0, 4)], [(1, 5, 1)]),  # a mask for all of them
        ("aaaad", [*chain(5), (0, 4)], [(1, 4, 1)]),  # the first one's output is used elsewhere
        ("aaaaa", [(0, 1), (1, 2), (3, 4)], [(0, 3, 1)]),
    ],
)
def test_only_identically_connected_blocks_fold(
    kinds: str, ends: list[tuple[int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert folded(kinds, ends) == expected


@given(st.text("ab", max_size=40), st.lists(st.tuples(st.integers(-1, 39), st.integers(-1, 39)), max_size=40))
def test_runs_are_disjoint_and_have_equal_units(kinds: str, ends: list[tuple[int, int]]) -> None:
    last = 0
    level: Any = dict.fromkeys((one, other) for one, other in ends if max(one, other) < len(kinds))
    for run in runs_of(kinds, range(len(kinds)), level):
        assert isinstance(run, Repetition)
        assert last <= run.first < run.last
        assert (run.last - run.first) % run.period == 0
        units = {kinds[at : at + run.period] for at in range(run.first, run.last, run.period)}
        assert len(units) == 1
        last = run.last


# --- Models -----------------------------------------------------------------------------------------------------------


def model_of(
    model: nn.Module, make: Callable[[], Any], take: Callable[[Any], Tensor] = Tensor.sum, **settings: Any
) -> answers.Model:
    watcher = watch(model, **settings)
    take(model(make())).backward()
    watcher.step()
    watcher.close()
    assert watcher.store is not None
    return StoreReader(watcher.store, "run-1").model()


def name_of(box: answers.ModelBox) -> str:
    return (box.module or "(root)") + (f"#{box.call}" if box.call else "")


def repeats_of(model: answers.Model) -> dict[str, tuple[int, list[str]]]:
    """Return the repeats by their first module: how often the unit occurs, and its modules."""
    return {
        box.module: (len(box.parts) // box.period, [name_of(model.boxes[part]) for part in box.parts[: box.period]])
        for box in model.boxes
        if box.kind == "repeat"
    }


def edges_in(model: answers.Model, module: str) -> set[tuple[str, str]]:
    """Return the edges inside the box of a module; "" stands for the outside."""
    box = next(box for box in model.boxes if box.module == module and box.kind != "repeat")

    def named(number: int | None) -> str:
        found = None if number is None else model.boxes[number]
        return "" if found is None else f"{found.module} ..." if found.kind == "repeat" else name_of(found)

    return {(named(edge.source), named(edge.target)) for edge in box.edges}


def test_the_blocks_of_gpt2_fold() -> None:
    config = transformers.GPT2Config(n_layer=5, n_head=2, n_embd=8, vocab_size=16, n_positions=8, use_cache=False)
    network = transformers.GPT2LMHeadModel(config)
    network.config.loss_type = "ForCausalLM"
    model = model_of(network, lambda: torch.randint(0, 16, (2, 8)), lambda out: out.logits.sum())
    assert repeats_of(model) == {"transformer.h.0": (5, ["transformer.h.0"])}
    assert edges_in(model, "transformer") == {
        ("transformer.wte", "transformer.drop"),
        ("transformer.wpe", "transformer.drop"),
        ("transformer.drop", "transformer.h.0 ..."),
        ("transformer.h.0 ...", "transformer.ln_f"),
        ("transformer.ln_f", ""),
    }
    block = "transformer.h.3"
    assert edges_in(model, block) == {
        ("", ""),  # the residual connection
        ("", f"{block}.ln_1"),
        (f"{block}.ln_1", f"{block}.attn"),
        ("", f"{block}.ln_2"),
        (f"{block}.attn", f"{block}.ln_2"),
        (f"{block}.ln_2", f"{block}.mlp"),
        (f"{block}.attn", ""),
        (f"{block}.mlp", ""),
    }
    assert model.absent == tuple(f"transformer.h.{number}.attn.attn_dropout" for number in range(5))
    root = next(box for box in model.boxes if not box.module)
    assert (
        root.flops
        == sum(2 * 16 * a * b for a, b in [(8, 24), (8, 8), (8, 32), (32, 8)] * 5) + 5 * 4 * 4 * 64 * 4 + 4096
    )
    assert root.parameters == network.num_parameters()


def test_the_blocks_of_a_resnet_fold_where_they_are_equal() -> None:
    def stage(width: int, wide: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(width, wide), *(BasicBlock(wide, wide) for _ in range(3)))

    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), stage(4, 4), stage(4, 6), nn.Flatten(), nn.Linear(384, 2))
    model = model_of(network, lambda: torch.randn(2, 3, 8, 8))
    assert repeats_of(model) == {"1.0": (4, ["1.0"]), "2.1": (3, ["2.1"])}  # the first one of stage 2 has a shortcut
    assert edges_in(model, "2.0") == {
        ("", "2.0.conv1"),
        ("2.0.conv1", "2.0.bn1"),
        ("2.0.bn1", "2.0.relu"),
        ("2.0.relu", "2.0.conv2"),
        ("2.0.conv2", "2.0.bn2"),
        ("", "2.0.downsample"),
        ("2.0.bn2", "2.0.relu#1"),
        ("2.0.downsample", "2.0.relu#1"),
        ("2.0.relu#1", ""),
    }


class Unet(nn.Module):
    """Has a skip connection on each level, from the way down to the way up."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(2, 2, 3, padding=1) for _ in range(depth)])
        self.up = nn.ModuleList([nn.Conv1d(4, 2, 3, padding=1) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x).relu()
            kept.append(x)
        for layer in self.up:
            x = layer(torch.cat([x, kept.pop()], 1)).relu()
        return x


def test_a_unet_with_skips_does_not_fold() -> None:
    model = model_of(Unet(), lambda: torch.randn(3, 2, 8))
    assert repeats_of(model) == {}
    assert edges_in(model, "") >= {("down.0", "up.3"), ("down.1", "up.2"), ("down.2", "up.1"), ("down.3", "up.0")}


def test_experts_side_by_side_fold() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 4)
            self.experts = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(6)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.gate(x)
            mixed: Tensor = sum(expert(x) for expert in self.experts)  # type: ignore[assignment]
            return mixed

    model = model_of(Experts(), batch)
    assert repeats_of(model) == {"experts.0": (6, ["experts.0"])}
    assert edges_in(model, "") == {("gate", "experts.0 ..."), ("experts.0 ...", "")}


def test_a_loop_over_time_folds_into_its_cell() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.head = nn.Linear(4, 8), nn.GRUCell(8, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.zeros(len(x), 8)
            for step in range(x.shape[1]):
                hidden = self.cell(self.embed(x[:, step]), hidden)
            return self.head(hidden)

    model = model_of(Recurrent(), lambda: torch.randn(3, 7, 4))
    assert repeats_of(model) == {"embed": (7, ["embed", "cell"])}
    assert edges_in(model, "") == {("embed ...", "head"), ("head", "")}
    beyond = model_of(Recurrent(), lambda: torch.randn(3, 7, 4), calls=4)  # the fourth calls also stand for later ones
    assert [box.flops for box in beyond.boxes if box.module == "embed" and box.kind == "call"] == [192] * 3 + [192 * 4]


def test_a_shared_module_has_a_box_for_each_call() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Residual(), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.encoder(x) - self.encoder(x)).abs())

    model = model_of(Siamese(), batch)
    assert edges_in(model, "") == {("encoder", "head"), ("encoder#1", "head"), ("head", "")}
    first, second = (box for box in model.boxes if box.module == "encoder")
    assert first.same == second.same
    assert first.parameters == second.parameters == 40


def test_a_generator_and_a_discriminator_are_two_boxes() -> None:
    generator, discriminator = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1))
    with hookcore.watch(server=None, budget=None) as watcher:
        discriminator(generator(batch())).mean().backward()
        watcher.step()
        discriminator(generator(batch())).mean().backward()
        watcher.step()
        watcher.flush()
        assert watcher.store is not None
        model = StoreReader(watcher.store).model()
    names = [model.boxes[part].module for part in model.parts]
    assert len(names) == 2
    assert [(model.boxes[edge.source or 0].module, model.boxes[edge.target or 0].module) for edge in model.edges] == [
        tuple(names)
    ]


def test_two_thousand_modules_fold_into_a_few_boxes() -> None:
    layers = [nn.Sequential(nn.LayerNorm(4), Residual()) for _ in range(330)]
    model = model_of(nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 1)), batch)
    assert len(model.boxes) > 1980
    assert repeats_of(model) == {"1": (330, ["1"])}
    root = next(box for box in model.boxes if not box.module)
    assert len(root.parts) == 3


# --- Without a flow ---------------------------------------------------------------------------------------------------


def test_until_the_flow_is_known_there_are_modules_without_connections() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.blocks = nn.Linear(4, 4), nn.ModuleList([Residual() for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return x

    with hookcore.watch(Net(), server=None) as watcher:
        assert watcher.store is not None
        for _ in range(100):
            if watcher.store.modules():
                break
            watcher.flush()
        model = StoreReader(watcher.store).model()
    assert (model.step, model.edges) == (None, ())
    assert "No step has been captured" in model.why
    assert {box.kind for box in model.boxes} == {"module", "repeat"}
    assert repeats_of(model) == {"blocks.0": (4, ["blocks.0"])}
    assert all(box.flops is None and not box.edges for box in model.boxes)
    assert [box.module for box in model.boxes if box.inside is None] == [""]


def test_the_page_says_why_the_flow_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Flows"), "MAX_CALLS", 2)
    model = model_of(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), batch)
    assert model.step is None
    assert model.why.endswith("is unknown, because a step has more than 2 calls of modules.")


def test_a_model_page_before_and_after_the_flow_is_learned() -> None:
    modules = [ModuleRecord("", "Net", None), ModuleRecord("a", "Linear", "", 6, 6), ModuleRecord("b", "Linear", "")]
    first = Flow(3, (FlowCall("a", inside=1), FlowCall("", returns=(0,))))
    sizes = (CallSize(flops=8, memory=4), CallSize(why="it hides them", memory=None), CallSize(flops=1, memory=2))
    second = Flow(9, (FlowCall("a", inside=2), FlowCall("gone", fed_by=(0,), inside=2), FlowCall("")), sizes=sizes)
    shown = {step: answers.Model.of("r", modules, [first, second], step, "unknown") for step in (2, 3, 8, 9, None)}
    assert {step: model.step for step, model in shown.items()} == {2: None, 3: 3, 8: 3, 9: 9, None: 9}
    assert shown[2].why == "unknown"
    assert shown[3].absent == ("b",)
    a, gone, root = shown[9].boxes
    assert (a.type, a.parameters, gone.type, root.flops, root.flops_unknown) == ("Linear", 6, "", 9, "it hides them")
    assert (gone.flops, gone.flops_unknown, root.memory) == (None, "it hides them", None)
    assert shown[3].boxes[0].flops_unknown == "the data flow isn't known"  # as in runs of older releases
    table = shown[9].columns()
    assert table["module"] == ["a", "gone", ""]
    assert table["flops"].tolist()[0] == 8.0
    assert {len(column) for column in table.values()} == {3}
