"""Bytes per element of every Triton kernel, counted in its machine code, beside the least that its rule allows.

Needs Triton but no card: ``python -m fastfed.bench.kernels.triton_traffic``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fastfed import Packing, kernels
from fastfed.kernels import backend_ops
from fastfed.kernels.client_call import ClientCall
from fastfed.kernels.passes import COEFFICIENTS
from fastfed.kernels.registry import interpreting
from fastfed.kernels.table import CLIENT_RULES, SERVER_RULES, client_numbers, server_numbers
from fastfed.kernels.triton import cover_tables
from fastfed.kernels.triton.aggregate_step import step_along_lanes
from fastfed.kernels.triton.engine import deltas
from fastfed.kernels.triton.launch import Launch, recorded
from fastfed.kernels.triton.server_step import Moments
from fastfed.kernels.triton.tiles import BLOCK, MATRIX_TILE
from fastfed.kernels.triton.traffic import Access, Traffic, traffic_of
from fastfed.kernels.triton.trimmed_mean import AHEAD
from fastfed.kernels.triton.weighted_sum import TAIL

backend = backend_ops.load("triton")

CAPABILITIES = (80, 90, 100)
SHAPE = (128, 64)  # SM3's tensor; the other kernels see as many elements
SIZE = SHAPE[0] * SHAPE[1]
SUM_SIZE = 1 << 18  # long enough for sums over clients to be cut into whole blocks
CLIENTS = 3
LANES = 8  # of the device engine's sum
FLOAT = 4
DOUBLE = 8

COEFFICIENT = Access("ld", FLOAT)
TABLE_FIELD = Access("ld", 8)
PARTIAL_SUM = Access("st", DOUBLE)


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel, and the least that it must move.

    `bytes` per element stand outside any loop, `client_bytes` per element and client inside loops, one turn of which
    takes `at_once` clients each; `narrow` are the accesses of less than 128 bits that one thread makes besides:
    coefficients, weights, partial sums, SM3's sides; `loops` are those with any access.
    """

    name: str
    launch: Launch
    bytes: float
    client_bytes: float = 0.0
    at_once: tuple[int, ...] = ()
    narrow: Counter[Access] = field(default_factory=Counter)
    elements: int = BLOCK
    loops: int = 0

    def traffic(self, capability: int) -> Traffic:
        return traffic_of(self.launch, self.elements, capability)


def _recorded(kernel: str, call: Callable[[], Any]) -> Launch:
    """The (last) launch of the kernel of that name that `call` makes."""
    with recorded() as launches:
        call()
    return [launch for launch in launches if launch.kernel.__name__ == kernel][-1]


# ---- server ---------------------------------------------------------------------------------------------------------


def _server_bytes(state: dict[str, Tensor]) -> int:
    """x and every moment that is kept, read and written."""
    return 2 * FLOAT * (1 + len(state))


def _server_call(rule: str, state: dict[str, Tensor], **options: Any) -> tuple[Any, ...]:
    chosen = options if rule in ("sgd", "momentum") else {"lr": 0.1, **options}
    return (*map(state.get, ("m", "v", "vmax")), server_numbers(rule, tuple(chosen), *chosen.values()))


def server_variant(
    rule: str, beta1: float | None = None, dtype: torch.dtype = torch.float32, **options: Any
) -> Variant:
    """`server_step` of a rule; `beta1` decides whether m is kept."""
    x, delta = torch.zeros(SIZE), torch.zeros(SIZE, dtype=dtype)
    given: dict[str, Any] = {} if beta1 is None else {"beta1": beta1}
    state = kernels.server_state(rule, x, **given)
    arguments = _server_call(rule, state, **given, **options)
    launch = _recorded("_server_step", lambda: backend.server_step(SERVER_RULES[rule], x, delta, *arguments))
    words = ["server", rule, *state, *(str(value) for value in options.values()), _short(dtype)]
    return Variant(" ".join(filter(None, words)), launch, _server_bytes(state) + dtype.itemsize)


def aggregate_variant(rule: str, dtype: torch.dtype = torch.float32) -> Variant:
    """`aggregate_step`: the server step without a delta in memory, and each client's delta once."""
    x, deltas = torch.zeros(SUM_SIZE), torch.zeros(CLIENTS, SUM_SIZE, dtype=dtype)
    weights = torch.ones(CLIENTS)
    state = kernels.server_state(rule, x)
    arguments = _server_call(rule, state)
    launch = _recorded(
        "_aggregate_step", lambda: backend.aggregate_step(SERVER_RULES[rule], x, deltas, weights, *arguments)
    )
    name = " ".join(filter(None, ["aggregate", rule, *state, _short(dtype)]))
    return Variant(name, launch, _server_bytes(state), **_sum(launch, dtype))


def lanes_variant(rule: str, *, moved: bool = False, size: int = SUM_SIZE) -> Variant:
    """The device engine's step: its lanes without weights. With `moved`, the numbers of a model that is laid out
    otherwise are at places of their own, and every thread has one of them."""
    x, lanes = torch.zeros(size), torch.zeros(LANES, size)
    places = torch.arange(size, dtype=torch.int32) if moved else None
    state = kernels.server_state(rule, x)
    *moments, numbers = _server_call(rule, state)
    launch = _recorded(
        "_aggregate_step", lambda: step_along_lanes(SERVER_RULES[rule], x, lanes, places, Moments(*moments), numbers)
    )
    name = " ".join(["lanes", rule, *state, *["moved"] * moved])
    at_once = (launch.constants["AHEAD"], TAIL.value)
    if not moved:
        return Variant(name, launch, _server_bytes(state), FLOAT, at_once, loops=len(at_once))
    one_by_one = Counter({Access("ld", FLOAT): 2 + len(state), Access("st", FLOAT): 1 + len(state)})
    one_by_one += Counter({Access("ld", FLOAT, (loop,)): lanes for loop, lanes in enumerate(at_once)})
    elements = launch.constants["BLOCK"]
    return Variant(name, launch, 0, narrow=one_by_one, elements=elements, loops=len(at_once))


def weighted_sum_variant(dtype: torch.dtype) -> Variant:
    deltas, out = torch.zeros(CLIENTS, SUM_SIZE, dtype=dtype), torch.zeros(SUM_SIZE)
    weights = torch.ones(CLIENTS)
    launch = _recorded("_weighted_sum", lambda: backend.weighted_sum(deltas, weights, out))
    name = f"weighted_sum {_short(dtype)}".strip()
    return Variant(name, launch, FLOAT, **_sum(launch, dtype))


def trimmed_mean_variant() -> Variant:
    """Of clients few enough to be held: they are read once for all bits, in rows that are a power of two, and once more
    for the sum."""
    deltas, out = torch.zeros(CLIENTS, SUM_SIZE), torch.zeros(SUM_SIZE)
    launch = _recorded("_trimmed_mean", lambda: backend.trimmed_mean(deltas, 1, out))
    once = FLOAT * (1 + launch.constants["ROWS"])
    elements = launch.constants["BLOCK"]
    return Variant("trimmed_mean", launch, once, FLOAT, (AHEAD.value,), elements=elements, loops=1)


def _sum(launch: Launch, dtype: torch.dtype, tail: int = TAIL.value) -> dict[str, Any]:
    """What adding up clients moves: their deltas, and a weight of each; the last ones `tail` at a time."""
    at_once = (launch.constants["AHEAD"], tail)
    weights = Counter({Access("ld", FLOAT, (loop,)): clients for loop, clients in enumerate(at_once)})
    return {"client_bytes": dtype.itemsize, "at_once": at_once, "narrow": weights, "loops": len(at_once)}


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "", torch.bfloat16: "(bfloat16)", torch.float16: "(float16)"}[dtype]


# ---- client ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ClientSetup:
    """A client step on aligned vectors, with or without FedProx's and SCAFFOLD's vectors."""

    rule: str
    corrected: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    made: tuple[tuple[str, Any], ...] = ()

    def call(self) -> ClientCall:
        entry, x = CLIENT_RULES[self.rule], torch.zeros(CLIENTS, SIZE)
        packing: dict[str, Any] = {"packing": Packing.from_shapes({"matrix": SHAPE})} if entry.cover else {}
        state = kernels.client_state(self.rule, x, **packing, **dict(self.made))
        options = dict(self.options) | ({"prox": 0.1} if self.corrected else {})
        if "lr" in entry.options:
            options["lr"] = 0.1
        numbers = client_numbers(self.rule, False, tuple(options), *options.values())
        extra = {"anchor": torch.zeros(SIZE), "correction": torch.zeros_like(x)} if self.corrected else {}
        if entry.step_size == "sps":
            extra["loss"] = torch.ones(CLIENTS)
        return ClientCall(entry, numbers, x, torch.zeros_like(x), state, **extra)

    @property
    def name(self) -> str:
        return " ".join(["client", self.rule, *(f"{k}={v}" for k, v in self.made), *(["corrected"] * self.corrected)])


def _gradient_bytes(call: ClientCall) -> int:
    return FLOAT * (1 + (call.anchor is not None) + (call.correction is not None))


def _update_bytes(call: ClientCall) -> int:
    """The gradient; x and every vector that is kept, read and written (Delta-SGD's last gradient only written)."""
    both = [name for name in ("m", "v") if name in call.state]
    written = [name for name in ("grad_prev",) if name in call.state]
    return _gradient_bytes(call) + FLOAT * (2 + 2 * len(both) + len(written))


def _coefficients(call: ClientCall) -> int:
    """Without a second moment: ACTIVE, SCALE and STEP; with one, also REFRESH, KEEP and ROOT_SCALE."""
    return COEFFICIENTS if call.rule.has_second_moment else COEFFICIENTS - 3


def client_variant(setup: _ClientSetup) -> Variant:
    """The update of a rule without cover."""
    call = setup.call()
    narrow = Counter({COEFFICIENT: _coefficients(call)})
    if call.rule.step_size == "delta_sgd":
        narrow[PARTIAL_SUM] = 1
    launch = _recorded("_update", lambda: backend.client_step(call))
    return Variant(setup.name, launch, _update_bytes(call), narrow=narrow)


def cover_variant(setup: _ClientSetup) -> Variant:
    """SM3's main pass over matrices on 16-byte borders: besides x, g and m it reads mu along the tile's rows and
    columns and, in SM3-II, raises the maxima along them. Each side is a loop over its axes."""
    call = setup.call()
    rows, cols = MATRIX_TILE
    launch = _recorded("_cover_pass", lambda: backend.client_step(call))
    raises = call.rule.cover == "II"
    coefficients = COEFFICIENTS - (not raises)  # SM3-I has refreshed before
    fields = cover_tables.TILE_FIELDS + 1 + 6 * raises  # one is read twice; raising reads the sides again
    narrow = Counter({COEFFICIENT: coefficients, TABLE_FIELD: fields})
    for loop in (0, 1):
        narrow += Counter({Access("ld", FLOAT, (loop,)): 1, Access("ld", 8, (loop,)): cover_tables.AXIS_FIELDS})
    for loop in (2, 3) if raises else ():
        narrow += Counter({Access("red", FLOAT, (loop,)): 1, Access("ld", 8, (loop,)): cover_tables.AXIS_FIELDS})
    return Variant(setup.name, launch, _update_bytes(call), narrow=narrow, elements=rows * cols, loops=2 + 2 * raises)


def measuring_variants() -> Iterator[Variant]:
    """The passes that only measure, and norms."""
    sps = _ClientSetup("sps").call()
    launch = _recorded("_gradient_squares", lambda: backend.client_step(sps))
    yield Variant("gradient norm", launch, FLOAT, narrow=Counter({COEFFICIENT: 2, PARTIAL_SUM: 1}))
    delta_sgd = _ClientSetup("delta_sgd").call()
    launch = _recorded("_gradient_squares", lambda: backend.client_step(delta_sgd))
    yield Variant("gradient change", launch, 2 * FLOAT, narrow=Counter({COEFFICIENT: 2, PARTIAL_SUM: 1}))
    adam = _ClientSetup("adam", options=(("floor", 1.0),)).call()
    launch = _recorded("_direction_squares", lambda: backend.client_step(adam))
    yield Variant("direction norm adam", launch, 3 * FLOAT, narrow=Counter({COEFFICIENT: 5, PARTIAL_SUM: 1}))
    x, out = torch.zeros(CLIENTS, SIZE), torch.zeros(CLIENTS, dtype=torch.float64)
    launch = _recorded("_row_squares", lambda: backend.norms(x, out))
    yield Variant("norms", launch, FLOAT, narrow=Counter({PARTIAL_SUM: 1}))
    launch = _recorded("_scale_rows", lambda: backend.clip(x, 1.0, out))
    yield Variant("clip", launch, 2 * FLOAT, narrow=Counter({COEFFICIENT: 1}))


def delta_variants() -> Iterator[Variant]:
    """The device engine's way from trained models to their weighted sum: with one start model, or one a client."""
    doubles = torch.ones(CLIENTS, dtype=torch.float64)
    x, weights, sums = torch.zeros(CLIENTS, SUM_SIZE), torch.ones(CLIENTS), torch.zeros(LANES, SUM_SIZE)
    for start in (x[0], x):
        own = start.dim() == 2
        name = " own starts" * own
        launch = _recorded("_delta_squares", lambda: deltas.weigh(x, start, doubles, None, doubles))  # noqa: B023
        yield Variant(f"delta norms{name}", launch, 2 * FLOAT, narrow=Counter({PARTIAL_SUM: 1}))
        launch = _recorded("_fold_deltas", lambda: deltas.fold(x, start, weights, sums, 0, CLIENTS))  # noqa: B023
        moved = _sum(launch, torch.float32, launch.constants["REST"]) | {"client_bytes": (1 + own) * FLOAT}
        yield Variant(f"delta sum{name}", launch, (3 - own) * FLOAT, **moved)
    launch = _recorded("_weigh", lambda: deltas.weigh(x, x[0], doubles, doubles, doubles))
    of_client = Counter({Access("ld", DOUBLE): 2, PARTIAL_SUM: 1, Access("st", FLOAT): 1})  # share, limit, norm, weight
    parts = {"client_bytes": DOUBLE, "at_once": (1,), "loops": 1, "elements": launch.constants["PARTS"]}
    yield Variant("delta weights", launch, 0, narrow=of_client, **parts)
    launch = _recorded("_join", lambda: deltas.join(sums))
    yield Variant("delta lanes", launch, (LANES + 1) * FLOAT, narrow=Counter({Access("st", FLOAT): 1}))


def random_variants() -> Iterator[Variant]:
    """`normal` is left out: the library's sine and cosine keep a local array for angles beyond 100,000, of which these
    kernels have none, but no count could show that."""
    words, clients = kernels.Stream(1).words(), torch.zeros(CLIENTS, dtype=torch.int64)
    client_id = Counter({Access("ld", 8): 1})
    numbers = torch.zeros(CLIENTS, SIZE)
    launch = _recorded("_uniform", lambda: backend.uniform(numbers, words, clients))
    yield Variant("uniform", launch, FLOAT, narrow=client_id)
    order = torch.zeros(CLIENTS, SIZE, dtype=torch.int64)
    launch = _recorded("_sort_keys", lambda: backend.permutation(order, words, clients))
    yield Variant("permutation keys", launch, order.itemsize, narrow=client_id, elements=BLOCK // 2)
    launch = _recorded("_shuffle_keys", lambda: backend.shuffles(order, words, clients, clients, clients))
    of_row = Counter({Access("ld", 8): 3})  # client, step and count
    yield Variant("shuffle keys", launch, order.itemsize, narrow=of_row, elements=BLOCK // 2)


def variants() -> list[Variant]:
    """Every kernel that passes over vectors, in every form that differs in what it moves."""
    if interpreting():
        raise RuntimeError("TRITON_INTERPRET: is 1, but interpreted kernels compile to nothing that could be counted")
    half = (torch.bfloat16, torch.float16)
    return [
        *(server_variant(rule) for rule in SERVER_RULES),
        *(server_variant(rule, beta1=0.0) for rule in ("adam", "yogi", "ams")),
        server_variant("adagrad", beta1=0.9),
        server_variant("adam", second_moment_of="delta"),
        *(server_variant("adam", dtype=dtype) for dtype in half),
        *(client_variant(_ClientSetup(rule)) for rule in CLIENT_RULES if CLIENT_RULES[rule].cover is None),
        client_variant(_ClientSetup("adam", corrected=True)),
        *(cover_variant(_ClientSetup(rule)) for rule in CLIENT_RULES if CLIENT_RULES[rule].cover is not None),
        cover_variant(_ClientSetup("sm3", options=(("beta1", 0.9),), made=(("beta1", 0.9),))),
        *(weighted_sum_variant(dtype) for dtype in (torch.float32, *half)),
        trimmed_mean_variant(),
        *(aggregate_variant(rule) for rule in SERVER_RULES),
        *(aggregate_variant("adam", dtype) for dtype in half),
        *(lanes_variant(rule) for rule in SERVER_RULES),
        *(lanes_variant(rule, moved=True) for rule in ("sgd", "ams")),
        *measuring_variants(),
        *delta_variants(),
        *random_variants(),
    ]


# ---- the table ------------------------------------------------------------------------------------------------------


def _bytes(fixed: float, per_client: float) -> str:
    words = [f"{fixed:g}"] * (fixed > 0) + [f"{per_client:g}*clients"] * (per_client > 0)
    return " + ".join(words)


def _client_bytes(variant: Variant, traffic: Traffic) -> float:
    """Per element and client, in the loop that takes most clients at once."""
    return traffic.bytes_per_element(0) / variant.at_once[0] if variant.at_once else 0.0


def _distinct(values: list[Any]) -> str:
    """One word where all capabilities agree, else one each."""
    words = [str(value) for value in values]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def row(variant: Variant) -> list[str]:
    """A line of the table."""
    found = [variant.traffic(capability) for capability in CAPABILITIES]
    return [
        variant.name,
        _bytes(variant.bytes, variant.client_bytes),
        _distinct([_bytes(t.bytes_per_element(), _client_bytes(variant, t)) for t in found]),
        _distinct([t.narrow_accesses - t.atomics for t in found]),
        _distinct([t.atomics for t in found]),
        _distinct([t.registers for t in found]),
        _distinct([t.local_bytes for t in found]),
        _distinct([f"{t.occupancy:.0%}" for t in found]),
    ]


def main() -> None:
    """Prints the table."""
    cards = " / ".join(f"sm_{capability}" for capability in CAPABILITIES)
    table = Table(title=f"Triton kernels compiled for {cards}", caption="bytes per element by 128-bit accesses")
    table.add_column("kernel")
    for heading in ("minimum", "counted", "narrow accesses", "atomics", "registers", "spilled", "occupancy"):
        table.add_column(heading, justify="right")
    for variant in variants():
        table.add_row(*row(variant))
    console = Console()
    console.width = max(console.width, 170)
    console.print(table)


if __name__ == "__main__":
    main()
