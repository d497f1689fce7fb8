"""Any module with the registrations as methods. The module itself isn't touched until a hook is registered."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from torch import nn

from hookcore.errors import ClosedError
from hookcore.hooks import backward, modules
from hookcore.hooks.checks import require_module
from hookcore.hooks.handle import HookHandle, registering

M = TypeVar("M", bound=nn.Module)
Hook = Callable[..., Any]

_OWN: Final = frozenset({"_hooked_inner", "_hooked_handles"})
# Methods of the module that return the module, for chaining. Here they return the wrapper.
_RETURN_SELF: Final = frozenset(
    {
        "apply",
        "bfloat16",
        "cpu",
        "cuda",
        "double",
        "eval",
        "float",
        "half",
        "ipu",
        "mtia",
        "requires_grad_",
        "share_memory",
        "to",
        "to_empty",
        "train",
        "type",
        "xpu",
    }
)
_HOOK_TABLES: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
)


class HookedModule(Generic[M]):
    """Wraps a module: calls, attributes, items, state dict, `to`, and `train` are those of the inner module.

    It is not a torch.nn.Module, so it never becomes part of a model: pass `inner` where one is needed. Threads may
    register, remove, and run the forward at the same time. A deepcopy or a pickle holds the module without the hooks
    that were registered here.
    """

    _hooked_inner: M | None
    _hooked_handles: list[HookHandle]

    def __init__(self, module: M) -> None:
        require_module(module)
        self._hooked_inner = module
        self._hooked_handles = []

    @property
    def inner(self) -> M:
        """The wrapped module itself, not a copy."""
        inner = self._hooked_inner
        if inner is None:
            raise ClosedError("The HookedModule has given its module back. Use that module, or wrap it again.")
        return inner

    @property
    def handles(self) -> tuple[HookHandle, ...]:
        """The handles of the hooks that were registered here and are still active, in order."""
        with registering():
            return tuple(handle for handle in self._hooked_handles if handle.active)

    def into_inner(self, *, keep_hooks: bool = False) -> M:
        """Return the module, by default without the hooks registered here. The wrapper can't be used afterwards."""
        with registering():
            inner = self.inner
            if not keep_hooks:
                self.remove_hooks()
            self._hooked_handles = []
            self._hooked_inner = None
            return inner

    def remove_hooks(self) -> None:
        """Remove every hook that was registered here."""
        with registering():
            for handle in self._hooked_handles:
                handle.remove()
            self._hooked_handles = []

    def on_forward_pre(self, fn: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> HookHandle:
        """`hooks.on_forward_pre` on the inner module."""
        return self._keep(modules.on_forward_pre, fn, prepend=prepend, with_kwargs=with_kwargs)

    def on_forward(
        self, fn: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> HookHandle:
        """`hooks.on_forward` on the inner module."""
        return self._keep(modules.on_forward, fn, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call)

    def on_full_backward_pre(self, fn: Hook, *, prepend: bool = False) -> HookHandle:
        """`hooks.on_full_backward_pre` on the inner module."""
        return self._keep(modules.on_full_backward_pre, fn, prepend=prepend)

    def on_full_backward(self, fn: Hook, *, prepend: bool = False) -> HookHandle:
        """`hooks.on_full_backward` on the inner module."""
        return self._keep(modules.on_full_backward, fn, prepend=prepend)

    def on_backward_end(self, fn: Hook) -> HookHandle:
        """`hooks.on_backward_end` for every backward through the inner module's parameters."""
        return self._keep(lambda inner, given: backward.on_backward_end(given, of=inner), fn)

    def _keep(self, register: Callable[..., HookHandle], fn: Hook, **options: bool) -> HookHandle:
        with registering():
            handle = register(self.inner, fn, **options)
            # Handles that were removed one by one must not accumulate here.
            self._hooked_handles = [*(kept for kept in self._hooked_handles if kept.active), handle]
            return handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        value = getattr(self.inner, name)
        return functools.partial(_call_inner, self, value) if name in _RETURN_SELF else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.inner, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.inner)})

    def __repr__(self) -> str:
        inner = self._hooked_inner
        return "HookedModule(given back)" if inner is None else f"HookedModule({inner!r})"

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)  # type: ignore[call-overload,no-any-return]

    def __contains__(self, item: object) -> bool:
        return item in self.inner  # type: ignore[operator]

    def __getitem__(self, key: Any) -> Any:
        return self.inner[key]  # type: ignore[index]

    def __copy__(self) -> HookedModule[M]:
        return HookedModule(self.inner)

    def __deepcopy__(self, memo: dict[int, Any]) -> HookedModule[M]:
        with registering():
            inner = self.inner
            copied = copy.deepcopy(inner, memo)
            _strip(copied, self._find_hooks())
        twin = HookedModule(copied)
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        with registering():
            plain = copy.copy(self.inner)
            for table in _HOOK_TABLES:
                plain.__dict__[table] = copy.copy(plain.__dict__[table])
            _strip(plain, self._find_hooks())
        return (HookedModule, (plain,))

    def _find_hooks(self) -> set[int]:
        """Return torch's numbers of the hooks on the inner module that were registered here."""
        return {handle.id for kept in self._hooked_handles for handle in kept._handles}


def _call_inner(hooked: HookedModule[Any], method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = method(*args, **kwargs)
    return hooked if result is hooked._hooked_inner else result


def _strip(module: nn.Module, numbers: set[int]) -> None:
    for table in _HOOK_TABLES:
        for number in numbers & module.__dict__[table].keys():
            del module.__dict__[table][number]
    if not module.__dict__["_backward_hooks"]:
        module.__dict__["_is_full_backward_hook"] = None
