"""``python -m fastfed`` and the command ``fastfed``: the command line, or a sentence that says what it needs."""

from __future__ import annotations

import sys

_OF_THE_APP = ("typer", "click", "rich", "pydantic", "tomli_w", "tomli")


def main() -> None:
    """The entry point."""
    try:
        from .app.cli import main as command_line
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_APP:
            raise
        sys.exit(f"fastfed: the command line needs {error.name}: pip install 'fastfed[app]'")
    command_line()


if __name__ == "__main__":
    main()
