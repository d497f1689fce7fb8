"""`python -m hookcore_app.cli` is the command `hookcore`."""

import sys

from .command import main

sys.exit(main())
