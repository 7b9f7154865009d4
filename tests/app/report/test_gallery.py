"""docs/gallery.md shows every kind of figure that there is."""

from __future__ import annotations

import re
from pathlib import Path

from fastfed.app import gallery

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_a_picture_of_every_kind_and_no_other() -> None:
    shown = re.findall(r"^!\[.+\]\(gallery/(\w+\.png)\)$", (DOCS / gallery.PAGE).read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in (DOCS / gallery.FOLDER).iterdir())
    kinds = {
        "test_accuracy_by_round", "test_accuracy_by_bits", "test_accuracy_by_clock", "test_accuracy_by_epsilon",
        "step_size_by_round", "client_lr_by_round", "ages", "cohorts", "epsilon_by_round", "seconds_per_room",
        "partition", "sweep_heat_map_server_lr_client_lr", "sweep_sensitivity_client_lr", "sweep_best_server_lr",
        "sweep_ranks", "sweep_ranked_curves",
    }  # fmt: skip
    assert kinds <= {name.removesuffix(".png") for name in shown}


def test_a_page_names_what_draws_each_figure() -> None:
    page = gallery._page([gallery.Shown("Ages", "fastfed report runs", "ages.png")])
    assert "## Ages\n\n`fastfed report runs`\n\n![Ages](gallery/ages.png)\n" in page
