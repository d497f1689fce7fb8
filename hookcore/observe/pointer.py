"""What the compiled kernels share: how they are compiled, and a pointer from an address.

They are handed numbers instead of arrays, since boxing an array costs more than the work on a small tensor.
"""

from __future__ import annotations

from typing import Any, Final

from numba import njit, types
from numba.extending import intrinsic


def _can_cache() -> bool:
    """Whether compiled code can be kept on disk; on a read-only system without a home it cannot."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


OPTIONS: Final[dict[str, Any]] = {"cache": _can_cache(), "error_model": "numpy"}


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.intp), build
