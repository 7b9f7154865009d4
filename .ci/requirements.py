"""Prints what pyproject.toml says FastFed needs, and what the extras named on the command line need besides."""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(need for extra in sys.argv[1:] for need in extras[extra]), sep="\n")
