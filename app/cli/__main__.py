"""`python -m hookcore_app.cli` is the command `hookcore`."""

import sys

from . import main

sys.exit(main())
