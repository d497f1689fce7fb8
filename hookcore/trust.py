"""Which servers with `https` are believed: those of the machine's own authorities, or of HOOKCORE_CA_FILE."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from hookcore.errors import ArgumentError


def trusted(environment: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """What a client needs to speak TLS. Raises ArgumentError where the variable names no certificates."""
    file = environment.get("HOOKCORE_CA_FILE", "").strip() or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise ArgumentError(
            f"HOOKCORE_CA_FILE={file!r} cannot be used ({error.strerror or error}): name a file of certificates in PEM"
        ) from None
