"""Prints every package of this environment with its licence, as it says itself, and which extras want it."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from importlib.metadata import Distribution, distributions
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
LONGEST = 60  # letters of a licence: some packages put the whole text there


def plain(name: str) -> str:
    """A package's name as it is compared: flwr[simulation]>=1.41 becomes flwr."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;(]", name.strip(), maxsplit=1)[0]).lower()


def wanted() -> dict[str, list[str]]:
    """Package -> the extras that name it; "needed" for what FastFed cannot do without."""
    found = defaultdict(list)
    for extra, needs in {"needed": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        for need in needs:
            found[plain(need)].append(extra)
    return found


def licence(package: Distribution) -> str:
    """In its own words: the expression, else the classifiers, else the field, else nothing is known."""
    told = package.metadata
    classified = [one.split(" :: ")[-1] for one in told.get_all("Classifier") or [] if one.startswith("License ::")]
    classified = [one for one in classified if one != "OSI Approved"]
    field = (told.get("License") or "").strip().splitlines()
    words = told.get("License-Expression") or ", ".join(classified) or (field[0] if field else "")
    return words[:LONGEST] or "not said"


def main() -> int:
    extras = wanted()
    rows = sorted({(plain(one.metadata["Name"]), one.version, licence(one)) for one in distributions()})
    for name, version, words in rows:
        print(f"{name:24} {version:14} {words:{LONGEST}} {', '.join(extras.get(name, ()))}".rstrip())
    unknown = [name for name, _, words in rows if words == "not said"]
    print(f"{len(rows)} packages" + (f"; not said: {', '.join(unknown)}" if unknown else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
