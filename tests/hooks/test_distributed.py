"""Records of DistributedDataParallel's buckets: two gloo processes on this machine."""

# Torch types an attribute of a module as Tensor or Module, and leaves `backward` and `register_hook` untyped.
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,attr-defined"
# mypy: disable-error-code="var-annotated,comparison-overlap,list-item"
from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hookcore import hooks
from hookcore.errors import ArgumentError, HookError
from tests.leaks import nothing, nothing_left_behind  # noqa: F401
from tests.ranks import run_ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
CAP_MB = 0.002  # small, to get several buckets


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def wrap(module: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=CAP_MB, **options)


def train(model: nn.Module, rank: int) -> list[torch.Tensor]:
    """Train three steps, and return the gradients of the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=generator)).square().sum().backward()
        optimizer.step()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def compare_with_the_unhooked(rank: int, world: int) -> None:
    plain = train(wrap(build()), rank)
    model = wrap(build())
    with hooks.on_communication(model) as handle:
        assert handle.active
        recorded = train(model, rank)
    assert len(plain) == len(recorded)
    for mine, theirs in zip(recorded, plain, strict=True):
        assert torch.equal(mine, theirs)
    assert not handle.active
    count = len(handle.records)
    assert count >= 3
    again = train(model, rank)  # after removal, it still reduces, but no longer records
    assert len(handle.records) == count
    assert len(again) == len(plain)


def check_the_norms(rank: int, world: int) -> None:
    model = wrap(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = hooks.on_communication(model)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):  # DDP rearranges its buckets after the first backward
        optimizer.zero_grad()
        handle.clear()
        local = torch.autograd.grad(model.module(x).square().sum(), list(model.parameters()))
        model(x).square().sum().backward()
    records = sorted(handle.records, key=lambda record: record.index)
    assert [record.index for record in records] == list(range(len(records)))
    assert len(records) > 1
    assert [record.is_last for record in records].count(True) == 1
    reduced = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    numel = sum(gradient.numel() for gradient in reduced)
    assert sum(record.numel for record in records) == numel
    assert all(record.bytes == 4 * record.numel and record.dtype == "float32" for record in records)
    assert all(record.elapsed_s > 0 for record in records)
    after = sum(record.norm_after**2 for record in records) ** 0.5
    before = sum(record.norm_before**2 for record in records) ** 0.5
    assert after == pytest.approx(float(torch.cat([g.flatten() for g in reduced]).norm()), rel=1e-5)
    assert before == pytest.approx(float(torch.cat([g.flatten() for g in local]).norm()), rel=1e-5)
    assert before != pytest.approx(after, rel=1e-3)


def record_around_a_users_hook(rank: int, world: int) -> None:
    plain = wrap(build())
    plain.register_comm_hook(None, fp16_compress_hook)
    wanted = train(plain, rank)
    model = wrap(build())
    handle = hooks.on_communication(model, fp16_compress_hook, None, max_records=2)
    assert all(map(torch.equal, wanted, train(model, rank)))
    assert len(handle.records) == 2
    assert handle.dropped > 0
    assert handle.errors == 0
    with pytest.raises(HookError, match=r"already has the communication hook reduce_and_record; torch"):
        hooks.on_communication(model)
    handle.remove()
    second = hooks.on_communication(model, max_records=5)
    assert second.active
    assert not handle.active
    train(model, rank)
    assert len(second.records) == 5
    (record,) = hooks.inventory(model)
    assert (record.point, record.ours) == ("communication", True)


def refuse_a_second_hook(rank: int, world: int) -> None:
    model = wrap(build())
    model.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(HookError, match=r"already has the communication hook fp16_compress_hook.*Pass that hook to"):
        hooks.on_communication(model)
    builtin = wrap(build())
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(HookError, match=r"Torch refused the communication hook.*Torch takes one per model"):
        hooks.on_communication(builtin)
    assert builtin._comm_hooks == []
    train(builtin, rank)


CHECKS: dict[str, Callable[[int, int], None]] = {
    check.__name__: check
    for check in (compare_with_the_unhooked, check_the_norms, record_around_a_users_hook, refuse_a_second_hook)
}


def work(rank: int, world: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        for check in CHECKS.values():
            check(rank, world)
            dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("world", [2, 3])
def test_processes_reduce_bitwise_the_same_and_record_it(world: int, tmp_path: Path) -> None:
    run_ranks(work, (world, str(tmp_path / "meeting")), world)


_groups: list[Any] = []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    # torch before 2.8 holds Python's lock while it deletes a group, and a thread of the group may be waiting for it
    # to release a hook of the last reduction: a deadlock. So the group outlives the test.
    _groups.append(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_single_process_also_reduces_and_records() -> None:
    model = wrap(build())
    handle = hooks.on_communication(model)
    assert all(map(torch.equal, train(model, 0), train(wrap(build()), 0)))
    assert handle.records
    assert all(record.norm_before == record.norm_after for record in handle.records)


@pytest.mark.usefixtures("alone")
def test_an_error_of_the_recording_is_counted_and_the_training_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise ArithmeticError("no norm")

    monkeypatch.setattr(torch.linalg, "vector_norm", fail)
    model = wrap(build())
    handle = hooks.on_communication(model)
    assert all(map(torch.equal, train(model, 0), train(wrap(build()), 0)))
    assert handle.records == ()
    assert handle.errors > 0
    assert handle.first_error == "ArithmeticError: no norm"


@pytest.mark.usefixtures("alone")
def test_a_handle_keeps_neither_the_model_nor_the_users_function_alive() -> None:
    model = wrap(build())

    def user(_state: Any, bucket: Any) -> Any:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    handle = hooks.on_communication(model, user)
    train(model, 0)
    dead = weakref.ref(model), weakref.ref(user)
    records = handle.records
    del model, user
    gc.collect()
    gc.collect()
    assert [reference() for reference in dead] == [None, None]
    assert not handle.active
    assert handle.records == records
    handle.remove()


@pytest.mark.usefixtures("alone")
def test_sparse_gradients_are_reduced_and_have_no_norm() -> None:
    module = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    model = wrap(module)
    handle = hooks.on_communication(model)
    model(torch.tensor([[1, 2, 1]])).sum().backward()
    gradient = module[0].weight.grad
    assert gradient is not None
    assert gradient.to_dense()[1].tolist() == [2.0] * 4
    assert all(record.norm_before != record.norm_before for record in handle.records)


def test_a_model_that_does_not_communicate_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Got an object of type Linear; expected a torch.nn.parallel.Distributed"):
        hooks.on_communication(nn.Linear(1, 1))
    with pytest.raises(ArgumentError, match=r"expected a function \(state, bucket\)"):
        hooks.on_communication(nn.Linear(1, 1), 5)


@pytest.mark.usefixtures("alone")
def test_a_limit_must_be_a_positive_integer() -> None:
    with pytest.raises(ArgumentError, match=r"Got max_records=0; expected a whole number of at least 1"):
        hooks.on_communication(wrap(build()), max_records=0)
