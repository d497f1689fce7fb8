"""All user settings in one table: name, default, allowed values, and how a value is read.

`Settings.of` reads the arguments of a call by this table. For a missing one, it uses the variable of that name.
"""

from hookcore.config.flat import Flat, cut_text, flatten, value_of_text, without_secrets
from hookcore.config.launchers import MEETING, Launched, facts_of_job, is_loopback, launched, rank
from hookcore.config.readers import (
    AUTO,
    NO_FOLDER,
    GivenRules,
    OwnRule,
    Pattern,
    RulesGiven,
    Setting,
    addresses_of,
    bytes_of,
    did_you_mean,
    nearest,
)
from hookcore.config.settings import (
    KNOWN_VARIABLES,
    LIVE,
    NOT_GIVEN,
    SETTINGS,
    Attach,
    Capsule,
    Compiled,
    ConfigGiven,
    Explain,
    Settings,
    WatchSettings,
    token_of,
    unknown_variables,
)

__all__ = [
    "AUTO",
    "KNOWN_VARIABLES",
    "LIVE",
    "MEETING",
    "NOT_GIVEN",
    "NO_FOLDER",
    "SETTINGS",
    "Attach",
    "Capsule",
    "Compiled",
    "ConfigGiven",
    "Explain",
    "Flat",
    "GivenRules",
    "Launched",
    "OwnRule",
    "Pattern",
    "RulesGiven",
    "Setting",
    "Settings",
    "WatchSettings",
    "addresses_of",
    "bytes_of",
    "cut_text",
    "did_you_mean",
    "facts_of_job",
    "flatten",
    "is_loopback",
    "launched",
    "nearest",
    "rank",
    "token_of",
    "unknown_variables",
    "value_of_text",
    "without_secrets",
]
