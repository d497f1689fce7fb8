"""`python -m hookcore` is the command `hookcore`, also for launchers: `torchrun -m hookcore run train.py`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.exit(import_module("hookcore_app.cli").main())
