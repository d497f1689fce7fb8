"""What functions of probes may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

MAX_VALUES: Final = 4096  # that a function may return


def values_of(result: Any) -> Tensor:
    """Return a result as a tensor. Raises TypeError for a wrong one."""
    if isinstance(result, (bool, int, float)):
        return torch.tensor(float(result), dtype=torch.float64)
    if isinstance(result, Tensor) and result.dim() <= 1 and result.numel() <= MAX_VALUES:
        return result.detach()
    what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what}; a probe returns a number, or a 1-D tensor of at most {MAX_VALUES:,}")


def channels_of(function: Callable[[Tensor], Any] | None, given: Tensor, values: Tensor) -> int:
    """Return how many numbers the function has in mind: of very many, it returns groups. 0 for a single number."""
    if not values.dim():
        return 0
    count = getattr(function, "channels", None)
    return len(values) if count is None else int(count(given))
