"""`hookcore.trace`: the tensors of a few layers during a `with` block, without a server.

`nested` rebuilds any input or output, `copies` copies the tensors in it, `calls` holds the calls of a layer, `modules`
has the hooks of one module, and `tracer` selects the modules.
"""

from hookcore.hooks.tracing.copies import NotCopied
from hookcore.hooks.tracing.tracer import Layer, LayerCall, Trace, TraceKind, trace

__all__ = ["Layer", "LayerCall", "NotCopied", "Trace", "TraceKind", "trace"]
