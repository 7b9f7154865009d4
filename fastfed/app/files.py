"""Small files that are replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_whole(target: Path, text: str) -> None:
    """Writes a file aside and renames it: whoever reads it finds what was there before, or all of the new text."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def as_json(value: Mapping[str, Any]) -> str:
    """The text of a JSON file that people may read, too. What JSON lacks is refused: NaN and infinities."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
