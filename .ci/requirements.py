"""Prints what pyproject.toml says FastFed needs, and what the extras named on the command line need besides."""

import re
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]


def needs(extra: str) -> list[str]:
    """What an extra brings; one that is made of others, what these bring."""
    found = []
    for need in extras[extra]:
        others = re.fullmatch(r"fastfed\[(.*)\]", need)
        found += [each for other in others[1].split(",") for each in needs(other)] if others else [need]
    return found


print(*project["dependencies"], *(need for extra in sys.argv[1:] for need in needs(extra)), sep="\n")
