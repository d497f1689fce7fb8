# mypy: disable-error-code="no-untyped-call"
"""Weight gradients before clipping, and whether the script clips them, against what the loop itself has seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.findings import findings_of, key_figures_of
from hookcore.records.vocabulary import CLIP_FACTOR, CLIPPED_SHARE, GRADIENT_NORM, RAW_NORM
from tests.harness import digest, read_step, seed_all, watch

STEPS: Final = 8
Norms = dict[str, float]


@dataclass
class Seen:
    """What a loop has seen in each step: the norms before and after it changed gradients, of what it then stepped."""

    model: nn.Module
    before: list[Norms] = field(default_factory=list)
    after: list[Norms] = field(default_factory=list)

    def note(self, optimizer: Any, scale: float = 1.0) -> Norms:
        """Return the norms of the gradients that an optimizer steps, in float64."""
        stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
        return {
            name: float(each.grad.double().norm()) / scale
            for name, each in self.model.named_parameters()
            if id(each) in stepped and each.grad is not None
        }


def net(width: int = 16) -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 4))


def loss_of(model: nn.Module, size: float = 1.0) -> Tensor:
    return (model(size * torch.randn(16, 8)) ** 2).mean()


def by(change: Callable[[nn.Module], Any], micro_batches: Callable[[int], int] = lambda _: 1, **options: Any) -> Any:
    """Return a loop that changes its gradients in this way after the last pass."""

    def loop(seen: Seen, steps: int = STEPS) -> None:
        optimizer = torch.optim.AdamW(seen.model.parameters(), **{"lr": 1e-2, **options})
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(micro_batches(step)):
                loss_of(seen.model).backward()
            seen.before.append(seen.note(optimizer))
            change(seen.model)
            seen.after.append(seen.note(optimizer))
            optimizer.step()

    return loop


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clip_values(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)


def clip_groups(model: nn.Module) -> None:
    for number, layer in enumerate(model):  # type: ignore[arg-type]
        if list(layer.parameters()):
            nn.utils.clip_grad_norm_(layer.parameters(), 0.01 * (1 + number))


def replace(model: nn.Module) -> None:
    for each in model.parameters():
        each.grad = None if each.grad is None else 0.1 * each.grad


def scaled_by_hand(model: nn.Module) -> None:
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= 3


def rounded(model: nn.Module) -> None:
    for each in model.parameters():
        if each.grad is not None:
            each.grad *= 1 - 1e-6  # rounding, which isn't clipping


def leave(_: nn.Module) -> None: ...


def of_two_networks(seen: Seen, steps: int = STEPS) -> None:
    """Train a generator and a discriminator in turns. Only the discriminator is clipped."""
    first, second = seen.model[0], seen.model[2]  # type: ignore[index]
    mine, other = torch.optim.Adam(first.parameters(), 1e-2), torch.optim.Adam(second.parameters(), 1e-2)
    for step in range(steps):
        optimizer = (mine, other)[step % 2]
        optimizer.zero_grad()
        loss_of(seen.model).backward()
        if optimizer is other:
            loss_of(seen.model).backward()
        seen.before.append(seen.note(optimizer))
        if optimizer is other:
            nn.utils.clip_grad_norm_(second.parameters(), 0.02)
        seen.after.append(seen.note(optimizer))
        optimizer.step()


def of_one_pass(seen: Seen, steps: int = STEPS) -> None:
    """Step the matrices and the rest with optimizers of their own after one pass, clipped together."""
    every = list(seen.model.parameters())
    matrices, rest = [each for each in every if each.dim() == 2], [each for each in every if each.dim() < 2]
    one, two = torch.optim.SGD(matrices, 0.1, momentum=0.9), torch.optim.AdamW(rest, 1e-2)
    for _ in range(steps):
        seen.model.zero_grad()
        loss_of(seen.model).backward()
        seen.before.append(seen.note(one) | seen.note(two))
        clip(seen.model)
        seen.after.append(seen.note(one) | seen.note(two))
        one.step()
        two.step()


def with_scaler(seen: Seen, steps: int = STEPS) -> None:
    """Clip after unscaling. One step has infinite gradients, so it is skipped."""
    optimizer, scaler = torch.optim.AdamW(seen.model.parameters(), 1e-2), torch.amp.GradScaler("cpu", init_scale=512.0)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(seen.model, math.inf if step == 4 else 1.0)).backward()
        seen.before.append(seen.note(optimizer, scaler.get_scale()))
        scaler.unscale_(optimizer)
        clip(seen.model)
        seen.after.append({} if step == 4 else seen.note(optimizer))
        scaler.step(optimizer)
        scaler.update()


def with_closures(seen: Seen, steps: int = STEPS) -> None:
    """Clip in the closure of LBFGS: there is no last pass before its step."""
    optimizer = torch.optim.LBFGS(seen.model.parameters(), 0.1, max_iter=3)
    data = torch.randn(16, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (seen.model(data) ** 2).mean()
        loss.backward()
        clip(seen.model)
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def with_a_hook_that_raises(seen: Seen, steps: int = 60) -> None:
    """Give up some batches, because a hook of the script raises when the optimizer is about to step."""
    optimizer, is_bad = torch.optim.SGD(seen.model.parameters(), 1e-2), False

    def hook(*_: Any) -> None:
        if is_bad:
            raise ValueError("a bad batch")

    optimizer.register_step_pre_hook(hook)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(seen.model).backward()
        is_bad = step % 7 == 5
        with suppress(ValueError):
            optimizer.step()


CHANGED: Final[dict[str, Any]] = {
    "by norm": by(clip),
    "by norm, foreach": by(clip, foreach=True),
    "by norm, fused": by(clip, fused=True),
    "by norm, of micro-batches": by(clip, lambda _: 3),
    "by norm, of as many micro-batches as there are": by(clip, lambda step: 1 + step % 3),
    "by value": by(clip_values),
    "of each group": by(clip_groups),
    "replaced": by(replace),
    "by hand": by(scaled_by_hand),
    "by rounding": by(rounded),
    "of one of two networks": of_two_networks,
    "of two optimizers after one pass": of_one_pass,
    "with a scaler": with_scaler,
}


def run(loop: Any, watched: bool = True, **settings: Any) -> tuple[Seen, Any]:
    seen = Seen(net())
    if not watched:
        loop(seen)
        return seen, None
    with watch(seen.model, server=None, **settings) as watcher:
        loop(seen)
        assert watcher.flush()
    return seen, watcher


def measured(watcher: hookcore.Watcher, step: int, kind: str) -> Norms:
    found = read_step(watcher, step).items()
    return {f"{module}.{index}": stats["norm"] for (module, of, index, _), stats in found if of == kind}


def scalar(watcher: hookcore.Watcher, name: str) -> dict[int, float]:
    found = watcher.store.scalars(name)
    return dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True))


@pytest.mark.parametrize("name", CHANGED)
def test_gradients_are_measured_before_and_after_the_script_changes_them(name: str) -> None:
    seen, watcher = run(CHANGED[name])
    first = 4 if name == "of one of two networks" else 2 if "as there are" in name else 1
    clipped = list[bool]()
    for step in range(STEPS):
        after = measured(watcher, step, "param_grad")
        assert after == pytest.approx(seen.after[step], rel=1e-5)
        if step < first:
            continue
        before = measured(watcher, step, "raw_grad")
        expected = seen.before[step]
        if name == "of one of two networks" and not step % 2:
            assert not before, "the generator isn't clipped, and doesn't step the discriminator"
        elif not after:
            assert before.keys() == expected.keys()  # the skipped step: which gradients weren't finite is seen
        else:
            assert before == pytest.approx(expected, rel=1e-5)
            total, raw = (math.hypot(*each.values()) for each in (seen.after[step], expected))
            assert scalar(watcher, GRADIENT_NORM)[step] == pytest.approx(total, rel=1e-5)
            assert scalar(watcher, RAW_NORM)[step] == pytest.approx(raw, rel=1e-5)
            assert scalar(watcher, CLIP_FACTOR)[step] == pytest.approx(total / raw, rel=1e-5)
            clipped.append(total / raw < 1 - 1e-4)
            factors = read_step(watcher, step)
            for (module, kind, index, _), stats in factors.items():
                if kind == "param_grad":
                    of = f"{module}.{index}"
                    assert stats["ratio"] == pytest.approx(seen.after[step][of] / expected[of], rel=1e-5)
            assert scalar(watcher, CLIPPED_SHARE)[step] == pytest.approx(sum(clipped) / len(clipped))


@pytest.mark.parametrize("name", [*CHANGED, "closures", "unchanged"])
def test_weights_are_those_of_an_unwatched_twin(name: str) -> None:
    loop = {**CHANGED, "closures": with_closures, "unchanged": by(leave)}[name]
    watched, alone = run(loop)[0], run(loop, watched=False)[0]
    assert digest(dict(watched.model.state_dict())) == digest(dict(alone.model.state_dict()))


@pytest.mark.parametrize(
    "loop", [with_closures, by(leave), with_a_hook_that_raises], ids=["closures", "unchanged", "raises"]
)
def test_nothing_more_is_measured_if_nothing_changes_gradients_after_the_pass(loop: Any) -> None:
    _, watcher = run(loop)
    assert not watcher.store.taps(kind="raw_grad").taps
    assert RAW_NORM not in watcher.store.scalar_names()


def test_the_norm_of_all_gradients_is_left_out_if_some_of_them_are_not_measured() -> None:
    _, watcher = run(by(clip), include="0")
    assert measured(watcher, STEPS - 1, "raw_grad").keys() == {"0.weight", "0.bias"}
    assert RAW_NORM not in watcher.store.scalar_names()


def test_gradients_that_are_no_longer_changed_are_no_longer_measured_twice() -> None:
    seen = Seen(net())
    changes = iter([True] * 4 + [False] * 100)
    with watch(seen.model, server=None) as watcher:
        by(lambda model: clip(model) if next(changes) else None)(seen, 100)
        assert watcher.flush()
        rows = watcher.store.rows(watcher.store.taps(kind="raw_grad").numbers, "norm")
    steps = rows.first[(rows.present > 0).any(axis=1)]
    assert (steps.min(), steps.max()) == (1, 63)


def rule_of(watcher: hookcore.Watcher) -> list[str]:
    return [each.message for each in findings_of(watcher.store) if each.rule == "gradient-clipped-always"]


@pytest.mark.parametrize("change", [clip, clip_values, clip_groups])
def test_clipping_in_every_step_is_found_with_the_norms_before_and_after_it(change: Any) -> None:
    seen = Seen(net())
    with watch(seen.model, server=None) as watcher:
        by(change, lr=1e-4)(seen, 64)
        assert watcher.flush()
        (message,) = rule_of(watcher)
        figures = key_figures_of(watcher.store)
    before = float(np.median([math.hypot(*each.values()) for each in seen.before[1:]]))
    assert f"in 63 of the newest 63 captured steps: their norm was {before:.4g} before it" in message
    assert figures.gradient_norm is not None
    assert figures.raw_norm is not None
    assert figures.gradient_norm.value == pytest.approx(math.hypot(*seen.after[-1].values()), rel=1e-5)
    assert figures.raw_norm.value == pytest.approx(math.hypot(*seen.before[-1].values()), rel=1e-5)


def center(model: nn.Module) -> None:
    for each in model.parameters():
        if each.grad is not None and each.dim() == 2:
            each.grad.sub_(each.grad.mean(dim=1, keepdim=True))


@pytest.mark.parametrize("change", [leave, scaled_by_hand, center])
def test_gradients_that_are_changed_in_other_ways_are_not_called_clipped(change: Any) -> None:
    seen = Seen(net())
    with watch(seen.model, server=None) as watcher:
        by(change, lr=1e-4)(seen, 64)
        assert watcher.flush()
        assert rule_of(watcher) == []
