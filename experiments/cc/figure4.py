"""CC, Figure 4: two clients, of which one takes more local steps, and where the server goes, with normalised deltas and
without.

Published as a sketch: the search direction misses the global optimum where the clients' steps differ, and their deltas
are not divided by them.

    python experiments/cc/figure4.py out/figure4.png
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fastfed as ff

OPTIMA = torch.tensor([[-1.0, 2.0], [3.0, 1.0]])  # of the two clients; the global one is in the middle
STEPS = (2, 20)


def first_move(divide_by_steps: bool) -> Tensor:
    """The server's first step from the origin, (2,): each client descends the squared distance to its own optimum."""
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    fed = ff.data.from_arrays(torch.ones(2, 1), OPTIMA, client=[0, 1])
    sim = ff.Simulation(
        model,
        fed,
        client=ff.clients.SGD(lr=0.01),
        cohort=2,
        steps=STEPS,
        loss="mse",
        weights="uniform",
        divide_by_steps=divide_by_steps,
    )
    sim.step()
    return sim.packing.views(sim.params)["weight"].flatten()


def degrees_off(move: Tensor) -> float:
    """The angle between a move from the origin and the way to the global optimum."""
    cosine = torch.cosine_similarity(move, OPTIMA.mean(0), dim=0)
    return math.degrees(math.acos(min(1.0, float(cosine))))


def draw(path: Path) -> None:
    """Both directions, the clients' optima and the global one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*OPTIMA.T, "s", color="#495057", label="clients' optima")
    axes.plot(*OPTIMA.mean(0), "*", color="#2a9d8f", markersize=14, label="global optimum")
    for divided, colour, name in ((False, "#c1121f", "deltas as they are"), (True, "#2a6f97", "divided by steps")):
        move = first_move(divided)
        end = 1.6 * move / move.norm()
        axes.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.6})
        axes.plot([], [], color=colour, label=f"{name}: {degrees_off(move):.1f}° off")
    axes.plot(0, 0, "o", color="#495057", label="where both start")
    axes.set(xlim=(-1.5, 3.5), ylim=(-0.3, 3.4), aspect="equal")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    for divided in (False, True):
        print(f"divided by steps: {divided}, {degrees_off(first_move(divided)):.1f} degrees off")
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "out/figure4.png"))
