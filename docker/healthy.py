"""Exits with 0 if the server or collector in this container answers. The address comes from its variables.

The argument is the path that is asked: /readyz, or by default /healthz.
"""

import os
import ssl
import sys
import urllib.request

secure = bool(os.environ.get("HOOKCORE_CERTFILE"))
path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
url = f"{'https' if secure else 'http'}://127.0.0.1:{os.environ.get('HOOKCORE_PORT', '8642')}{path}"
# The certificate names the host, not this address. Only an answer matters here.
context = ssl._create_unverified_context() if secure else None
with urllib.request.urlopen(url, timeout=4, context=context) as answer:
    answer.read()
