"""The kernels of a round of executor 'device', compiled ahead of time for cards that need not be here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch.utils._pytree import tree_leaves

from .rounds import KEEPING, LAYERS, RULES, round_of, run_and_step
from .stubbed import stubbed_card

if TYPE_CHECKING:
    from ...kernels.triton.launch import Launch

CAPABILITIES = (80, 90, 100)
LAYER_CASES = [(layers, rule) for layers in LAYERS for rule in RULES | KEEPING]


@dataclass(frozen=True)
class Compiled:
    """One kernel of a round, as file.name, as compiled for a card."""

    kernel: str
    capability: int
    registers: int
    spilled: int
    shared: int
    resident: int
    occupancy: float
    mma: tuple[str, ...]


def compiled(
    name: str, rule: str, capabilities: tuple[int, ...] = CAPABILITIES, files: Container[str] | None = None
) -> Iterator[Compiled]:
    """Every kernel of a round of two clients and two steps, in every form in which it occurs; of these files only."""
    from ...kernels.triton.traffic import traffic_of

    for (kernel, *_), item in forms(name, rule).items():
        if files is not None and kernel.partition(".")[0] not in files:
            continue
        for capability in capabilities:
            t = traffic_of(item, 1, capability)
            families = tuple(sorted(t.mma_families))
            yield Compiled(
                kernel, capability, t.registers, t.local_bytes, t.shared_bytes, t.resident, t.occupancy, families
            )


def forms(name: str, rule: str) -> dict[tuple[str, str, str], Launch]:
    """The launches of a round of two clients and two steps, one for every form of a kernel: its name, its constants,
    and of what kind its arguments are."""
    from ...kernels.triton.launch import recorded

    with stubbed_card(), recorded() as launches:
        executor, work = round_of(name, rule, 2, 2)
        outcome = run_and_step(executor, work)
        _ = outcome.delta  # for who wants the sum itself
    return {_form(item): item for item in launches}


def _form(item: Launch) -> tuple[str, str, str]:
    kinds = [leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in tree_leaves(item.args)]
    return f"{item.kernel.__module__.rpartition('.')[2]}.{item.kernel.__name__}", str(item.constants), str(kinds)


# ---- the table ------------------------------------------------------------------------------------------------------


def kernel_rows(cases: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Every kernel of these cases in every form."""
    return [{"layers": name, "rule": rule, **asdict(k)} for name, rule in cases for k in compiled(name, rule)]


def kernel_table(rows: list[dict[str, Any]]) -> Table:
    """Rows of `kernel_rows` for people: of every kernel the worst of all its forms, by compute capability."""
    table = Table(title="Kernels compiled ahead of time: the worst of all forms, for 8.0 / 9.0 / 10.0")
    for heading in ("kernel", "forms", "registers", "shared bytes", "occupancy", "spilled", "tensor cores"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for kernel in sorted({row["kernel"] for row in rows}):
        by_card = [
            [r for r in rows if (r["kernel"], r["capability"]) == (kernel, capability)] for capability in CAPABILITIES
        ]
        table.add_row(
            kernel,
            str(len(by_card[0])),
            *(" / ".join(str(max(r[name] for r in of)) for of in by_card) for name in ("registers", "shared")),
            " / ".join(f"{min(r['occupancy'] for r in of):.0%}" for of in by_card),
            " / ".join(str(max(r["spilled"] for r in of)) for of in by_card),
            " / ".join(",".join(sorted({m for r in of for m in r["mma"]})) or "none" for of in by_card),
        )
    return table
