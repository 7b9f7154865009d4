"""Configurations: a TOML file, checked, that becomes a simulation.

`load` reads a file; `Config.simulation` makes what it describes; `Config.toml` writes it with every default stated, and
reading that gives the same run. Keys, types and defaults come from the signatures of what they are for: nothing is
listed twice. Errors are `ConfigError`, a sentence per problem that begins with the dotted key.
"""

from .centralised import centralised
from .config import CHANGE_NO_RESULT, Config, load, parse
from .errors import ConfigError
from .schema import json_schema
from .stand_ins import stand_in, with_data

__all__ = [
    "CHANGE_NO_RESULT",
    "Config",
    "ConfigError",
    "centralised",
    "json_schema",
    "load",
    "parse",
    "stand_in",
    "with_data",
]
