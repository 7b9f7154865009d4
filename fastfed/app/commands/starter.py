"""`fastfed init`: a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal import say

STARTER = """\
# A FastFed run: `fastfed run {file}` trains the digits that come with FastFed, in a few seconds.
# Every key that is left out has its default; the run's own config.toml states them all.
# `fastfed methods` and `fastfed data list` show what there is to choose from.

# base = "other.toml"     # begin with another file, and say only what differs
name = "FedYogi on digits"
method = "fedyogi"        # without a method, [client] and [server] each name a rule = "..."

[data]
name = "digits"           # fashion_mnist, cifar10, ... need root = "directory", relative to where you run it
partition = "dirichlet"   # or iid, natural (the data's own clients), pachinko
clients = 100
alpha = 0.3               # smaller: clients have fewer classes

[model]
name = "mlp"
sizes = [64, 64, 10]      # pixels, hidden, classes

[client]
lr = 0.1
# clip = 1.0              # the norm of every gradient

[server]
lr = 0.03
# tau = 1e-3

[run]
rounds = 100
cohort = 10               # clients per round; {{ poisson = 0.1 }} draws each with that probability
epochs = 2                # or steps = 5
batch_size = 10
seed = 0
evaluate_every = 10
# target = {{ test_accuracy = 0.95 }}   # stop there
# checkpoint_every = 10

# [schedule]
# server = {{ kind = "staircase", factor = 0.5, every = 50 }}

# [compression]
# kind = "top_k"
# fraction = 0.01

# [aggregation]           # instead of the mean; takes weights = "uniform" under [run]
# kind = "trimmed_mean"
# trim = 0.1
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where it goes.")] = Path("fastfed.toml"),
) -> None:
    """Write a commented configuration that runs as it is.

    Example: fastfed init digits.toml
    """
    try:
        with file.open("x") as opened:
            opened.write(STARTER.format(file=file))
    except FileExistsError:
        from ..config import ConfigError  # torch comes with it

        raise ConfigError(f"{file}: exists already, and is left as it is; name another file") from None
    say(f"Written: {file}\nNext:    fastfed run {file}")
