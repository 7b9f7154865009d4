"""What the documentation's site has besides docs/: pages from elsewhere in the repository, and the reference.

Hooks of mkdocs. Links between pages are those of the repository; here they become those of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ELSEWHERE = {  # file of the repository -> page of the site
    "README.md": "readme.md",
    "experiments/README.md": "experiments.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
REFERENCE = {  # page -> the names on it
    "simulation": ("Simulation", "History", "Packing"),
    "data": ("data",),
    "plan": ("plan", "schedules"),
    "clients": ("clients",),
    "servers": ("servers",),
    "methods": ("methods", "algorithms"),
    "models": ("models", "lora"),
    "aggregate": ("aggregate", "compression", "privacy"),
    "timing": ("timing", "fleet", "tune", "exchange"),
    "hooks": ("hooks", "loggers"),
    "train": ("train",),
    "kernels": ("kernels", "optim"),
    "ranks": ("ranks", "waiting"),
}
CLASSES = {
    "Simulation": "fastfed.simulation.Simulation",
    "History": "fastfed.record.history.History",
    "Packing": "fastfed.packing.Packing",
}
LINK = re.compile(r"(!?\[)([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """The reference's pages into the menu."""
    for entry in config["nav"]:
        if isinstance(entry, dict) and entry.get("Reference") == "api":
            entry["Reference"] = [f"api/{page}.md" for page in REFERENCE]
    return config


def on_files(files: Any, config: Any) -> Any:
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, names in REFERENCE.items():
        files.append(File.generated(config, f"api/{page}.md", content="\n\n".join(_reference(page, names))))
    return files


def _reference(page: str, names: tuple[str, ...]) -> list[str]:
    parts = [f"# {page.capitalize()}"]
    for name in names:
        whole = CLASSES.get(name, f"fastfed.{name}")
        parts.append(f"## ff.{name}\n\n::: {whole}\n    options:\n      heading_level: 3")
    return parts


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as the repository has them, from the place that the page has there, become the site's."""
    here = next(
        (source for source, made in ELSEWHERE.items() if made == page.file.src_uri), f"docs/{page.file.src_uri}"
    )
    site = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        opening, text, target, anchor = match.groups(default="")
        if "://" in target:
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        found = ELSEWHERE.get(there, there.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            return text  # a file of the repository that is no page of the site
        return f"{opening}{text}]({posixpath.relpath(found, site or '.')}{anchor})"

    return LINK.sub(moved, markdown)
