"""All user settings in one table: name, default, allowed values, and how a value is read.

`Settings.of` reads the arguments of a call by this table. For a missing one, it uses the variable of that name.
"""

from hookcore.config.environment import rank, token_of
from hookcore.config.readers import AUTO, NO_FOLDER, Pattern, addresses_of, bytes_of, did_you_mean, nearest
from hookcore.config.rules import GivenRules, OwnRule, RulesGiven
from hookcore.config.settings import NOT_GIVEN, Settings, WatchSettings
from hookcore.config.table import LIVE, SETTINGS, Attach, Capsule, Compiled, Setting

__all__ = [
    "AUTO",
    "LIVE",
    "NOT_GIVEN",
    "NO_FOLDER",
    "SETTINGS",
    "Attach",
    "Capsule",
    "Compiled",
    "GivenRules",
    "OwnRule",
    "Pattern",
    "RulesGiven",
    "Setting",
    "Settings",
    "WatchSettings",
    "addresses_of",
    "bytes_of",
    "did_you_mean",
    "nearest",
    "rank",
    "token_of",
]
