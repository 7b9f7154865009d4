"""`fastfed demo`: a real comparison and its report, without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..counting import counted
from .terminal import ASKED_WRONGLY, complain, console, exit_codes, show_table


def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Federated rounds per run.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method; two or more give bands.")] = 5,
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("out/demo"),
) -> None:
    """Compare FedAvg, FedYogi, FedAda2 and Delta-SGD on the embedded digits.

    Ends with a table and a report, in about half a minute. What is finished in the directory is not run again.

    Example: fastfed demo --rounds 200 --seeds 3 --out out/demo
    """
    from .. import demo as demonstration
    from ..report import NotOurs, gather, results, write
    from ..report.files import check_place
    from ..report.grid import as_rich

    said = console()

    def say(line: str) -> None:
        said.print(line, highlight=False, soft_wrap=True, markup=False)

    with exit_codes():
        try:
            check_place(out / "report")  # before the work, not after it
            done = demonstration.run(out / "runs", rounds, seeds, say)
            entries = gather([run.path for run in done])
            page = write(entries, out / "report")
        except NotOurs as error:
            complain(str(error))
            raise typer.Exit(ASKED_WRONGLY) from None
        show_table(
            as_rich(
                results(entries),
                f"Digits: 10 of 100 clients a round, {counted(rounds, 'round')}, {counted(seeds, 'seed')}",
            )
        )
        say(f"Runs:   {(out / 'runs').resolve()}")
        say(f"Report: {page.resolve()}")
