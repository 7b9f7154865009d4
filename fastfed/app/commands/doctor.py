"""`fastfed doctor`: what of FastFed works on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import ASKED_WRONGLY, CommandError, complain, console, show_table

if TYPE_CHECKING:
    from ..doctor import Diagnosis


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    self_test: Annotated[bool, typer.Option("--self-test", help="Test the device engine on every card.")] = False,
) -> None:
    """Say which backends and cards work here, and what the others lack.

    Each backend that can start takes one small step, compared with the reference. Exit code 0 if a fast one works and
    no card failed its self-test, which runs small rounds on the card; 2 if there is no card to test.

    Example: fastfed doctor --self-test
    """
    from ..doctor import examine

    report = examine(self_test)
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        _show(report)
    if not report.fast:
        raise CommandError("no fast backend works here; only the slow reference is left (the table above says why)")
    failed = [f"cuda:{patient.card.index}" for patient in report.cards if patient.passed is False]
    if failed:
        raise CommandError(f"the self-test failed on {', '.join(failed)}: executor 'device' refuses to run there")
    if self_test and all(patient.passed is None for patient in report.cards):
        complain(report.no_card or f"the self-test {report.cards[0].self_test}")
        raise typer.Exit(ASKED_WRONGLY)


def _show(report: Diagnosis) -> None:
    from rich.markup import escape
    from rich.table import Table

    shown = console()
    shown.print(f"Machine:  {escape(report.machine.words)}", highlight=False)
    shown.print(f"Versions: {', '.join(f'{k} {v}' for k, v in report.versions.items())}", highlight=False)
    table = Table()
    for name in ("backend", "usable", "device", "compiler", "SIMD", "threads"):
        table.add_column(name, overflow="fold")
    table.add_column("why not", overflow="fold", ratio=1)
    for row in report.backends:
        usable = "[green]yes[/]" if row.usable else "[red]no[/]"
        threads = "-" if row.threads is None else str(row.threads)
        table.add_row(row.backend, usable, row.device, row.compiler, row.simd, threads, escape(row.why_not))
    show_table(table)
    shown.print(f"CPU tensors run on: {escape(report.chosen)}", highlight=False)
    shown.print(f"Threads wait: {escape(report.waiting)}", highlight=False)
    for patient in report.cards:
        shown.print(f"{escape(patient.card.words)}; self-test {escape(patient.self_test)}", highlight=False)
    if report.no_card:
        shown.print(escape(report.no_card), highlight=False)
