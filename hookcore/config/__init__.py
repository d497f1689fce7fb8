"""What a user can set, in one table: the name, the default, what is allowed, and how a given value is read.

`Settings.of` reads the arguments of a call against the table, and where one is missing a variable of its name.
"""

from hookcore.config.readers import AUTO, NO_FOLDER, Pattern, bytes_of, did_you_mean, nearest
from hookcore.config.settings import NOT_GIVEN, Settings, WatchSettings
from hookcore.config.table import SETTINGS, Attach, Compiled, Setting

__all__ = [
    "AUTO",
    "NOT_GIVEN",
    "NO_FOLDER",
    "SETTINGS",
    "Attach",
    "Compiled",
    "Pattern",
    "Setting",
    "Settings",
    "WatchSettings",
    "bytes_of",
    "did_you_mean",
    "nearest",
]
