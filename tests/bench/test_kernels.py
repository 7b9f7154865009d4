"""`fastfed bench kernels` on tiny sizes: that it measures what it says. No test here asserts a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fastfed import Packing
from fastfed.app import cli
from fastfed.bench.common import timing
from fastfed.bench.common.place import CPU, Place, find_place
from fastfed.bench.kernels import bound, cases, table, targets
from fastfed.bench.kernels import run as kernels
from fastfed.bench.kernels.rows import Row
from fastfed.bench.peers import optimizers as peers
from fastfed.kernels import ops, registry
from tests import pretend

FIELDS = {
    "op", "kind", "backend", "size", "d", "median", "p20", "p80", "rounds", "loops", "bytes_per_element", "bound",
    "of_bound", "best", "ratio", "threads", "machine", "versions", "device", "gigabytes_per_second",
}  # fmt: skip
MINIMAL_BYTES = {
    "server_sgd": 12, "server_momentum": 20, "server_adagrad": 20, "server_adagrad_m": 28, "server_adam": 28,
    "server_yogi": 28, "server_ams": 36, "client_adam": 28, "client_sm3": 12, "client_sm3_adam": 20,
    "aggregate_adam_8": 4 * 8 + 24, "aggregate_adam_64": 4 * 64 + 24,
}  # fmt: skip


def row(**changes: object) -> Row:
    plain = Row(
        op="server_adam", kind="fastfed", backend="cpp", size=targets.LARGE, d=targets.LARGE, median=1.0, p20=0.9,
        p80=1.2, rounds=7, loops=1, bytes_per_element=28, bound=0.95, of_bound=0.95, best="torch fused", ratio=1.5,
        threads=2, machine="a machine", versions="some versions",
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Beside other tests, threads of tiny arrays would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- a whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, object]], Path]:
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPROC", "2")  # the run sets it; this puts it back
        command = ["bench", "kernels", "--sizes", "1e3", "--rounds", "1", "--threads", "1"]
        command += ["--json", str(out / "new" / "k.json"), "--plot", str(out / "k.png")]
        said = CliRunner().invoke(cli.app, command)
    assert said.exit_code == 0, said.exception
    return said.stdout, json.loads((out / "new" / "k.json").read_text()), out / "k.png"


def test_rows_are_complete_and_consistent(a_run: tuple[str, list[dict], Path]) -> None:
    _, rows, _ = a_run
    for one in rows:
        assert set(one) == FIELDS
        assert 0 < one["p20"] <= one["median"] <= one["p80"]
        assert (one["rounds"], one["threads"]) == (kernels.LATENCY_TURNS, 1)
        assert one["kind"] in ("fastfed", "peer", "bound")
        moved = one["bytes_per_element"] * one["d"]
        assert one["gigabytes_per_second"] == pytest.approx(moved / one["median"] / 1e9)
    keys = [(one["op"], one["backend"], one["size"]) for one in rows]
    assert len(set(keys)) == len(keys)


def test_every_op_is_there_once_with_its_rivals(a_run: tuple[str, list[dict], Path]) -> None:
    _, rows, _ = a_run
    probe = not isinstance(bound.find_probe(), str)
    for op in cases.CASES:
        those = {one["backend"]: one for one in rows if (one["op"], one["size"]) == (op, 1000)}
        (ours,) = (one for one in those.values() if one["kind"] == "fastfed")
        rivals = {name: one["median"] for name, one in those.items() if one["kind"] == "peer"}
        assert ours["best"] == min(rivals, key=rivals.__getitem__)
        assert ours["ratio"] == pytest.approx(rivals[ours["best"]] / ours["median"])
        assert (kernels.BOUND in those) == probe
        if probe:
            assert ours["of_bound"] == pytest.approx(those[kernels.BOUND]["median"] / ours["median"])


def test_the_peers_are_the_ones_promised(a_run: tuple[str, list[dict], Path]) -> None:
    _, rows, _ = a_run
    forms = {"torch for-loop", "torch foreach", "torch fused"}
    optax = {"optax jit"} if peers.has_optax() else set()
    wanted = {
        "server_sgd": forms,
        "client_momentum": forms,
        "client_adagrad": forms | optax,
        "client_adam": forms | optax,
        "server_ams": forms | optax,
        "server_yogi": optax or {"plain torch"},
        "client_sm3": optax or {"plain torch"},
        "client_sps": {"plain torch"},
        "aggregate_adam_64": {"torch.mv + server_step"},
        "trimmed_mean_65": {"torch.median", "torch.sort"},
    }
    for op, names in wanted.items():
        assert {one["backend"] for one in rows if one["op"] == op and one["kind"] == "peer"} == names


def test_the_tables_show_every_op_and_the_promises(a_run: tuple[str, list[dict], Path]) -> None:
    said, _, _ = a_run
    for op in cases.CASES:
        assert f"│ {op} " in said
    assert "Promised and measured" in said
    assert "not measured" in said  # 2.5e7 was not run


def test_larger_sizes_get_a_table_of_their_own() -> None:
    command = ["bench", "kernels", "--sizes", "2e3", "--ops", "norms,client_sm3", "--rounds", "1", "--threads", "1"]
    said = CliRunner().invoke(cli.app, command)
    assert said.exit_code == 0
    speed = said.stdout[: said.stdout.index("A whole call from Python")]
    assert "│ norms " in speed
    assert "2,032 │" in speed  # 45 x 45, padded to the next 64-byte border


def test_the_picture_is_a_picture(a_run: tuple[str, list[dict], Path]) -> None:
    assert a_run[2].read_bytes().startswith(b"\x89PNG")


# ---- its parts ------------------------------------------------------------------------------------------------------


def test_bytes_are_the_minimum_of_each_rule() -> None:
    for op, wanted in MINIMAL_BYTES.items():
        case = cases.CASES[op]
        assert bound.bytes_per_element(case.reads, case.updates) == wanted, op


def test_contenders_take_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    timings = timing.take_turns(calls, rounds=3, slice_seconds=0.0)
    assert all(one.loops == 1 and one.rounds == 3 for one in timings.values())
    assert "".join(order[-9:]) == "abcabcabc"


class Clock:
    """A clock that only moves when told, so that these tests do not depend on the machine."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, *durations: float) -> timing.Call:
        """A call that takes these seconds, one after the other, and the last of them from then on."""
        left = list(durations)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "default_timer", made)
    return made


def test_quick_calls_are_repeated_until_they_fill_a_slice(clock: Clock) -> None:
    calls = {"quick": clock.taking(1e-6), "slow": clock.taking(0.5)}
    timings = timing.take_turns(calls, rounds=2, slice_seconds=1e-3)
    assert timings["quick"].loops == pytest.approx(1000, abs=1)
    assert timings["quick"].median == pytest.approx(1e-6)
    assert (timings["slow"].loops, timings["slow"].median) == (1, 0.5)


def test_the_first_call_which_may_compile_is_not_timed(clock: Clock) -> None:
    (one,) = timing.take_turns({"compiles": clock.taking(100.0, 1.0)}, rounds=3).values()
    assert (one.p20, one.median, one.p80) == (1.0, 1.0, 1.0)


def test_the_middle_of_the_rounds_and_its_spread(clock: Clock) -> None:
    """After the first call and the calibration: rounds of 1 .. 6 seconds in no order, percentiles by interpolation."""
    (one,) = timing.take_turns({"uneven": clock.taking(9, 9, 4, 1, 6, 2, 5, 3)}, rounds=6).values()
    assert (one.median, one.p20, one.p80) == (3.5, 2.0, 5.0)


@pytest.mark.parametrize("op", list(cases.CASES))
def test_a_bout_can_run_for_long_without_leaving_the_finite_numbers(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed on infinities says nothing; Delta-SGD and clipping were built to stay where they are."""
    made: list[torch.Tensor] = []
    clone = torch.Tensor.clone

    def remember(self: torch.Tensor) -> torch.Tensor:
        made.append(clone(self))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "clone", remember)
    bout = cases.CASES[op].prepare(100, "reference", CPU)
    monkeypatch.undo()
    before = [clone(x) for x in made]
    for _ in range(100):
        bout.ours()
    assert all(bool(x.isfinite().all()) and float(x.abs().max()) < 1e4 for x in made)
    if op.startswith(("server", "client")):
        assert any(not torch.equal(x, old) for x, old in zip(made, before, strict=True))


def test_deltas_stay_within_memory() -> None:
    assert cases.MOST_DELTAS * 4 * 2 < 8e9
    deltas, weights = cases._deltas(8, 1000)
    assert deltas.shape == (8, 1000)
    assert float(weights.sum()) == pytest.approx(1)
    assert not torch.equal(deltas[0], deltas[1])


def test_peers_step_like_ours() -> None:
    """A peer computes the rule it stands for: a step of optax's sm3, as it is set up there, is ours."""
    torch.manual_seed(0)
    x, grad = torch.randn(4, 4), torch.randn(4, 4)
    ours = x.flatten().clone()
    state = ops.client_state("sm3", ours, packing=Packing.from_shapes({"weight": (4, 4)}))
    ops.client_step("sm3", ours, grad.flatten(), state, lr=1e-3, backend="reference")
    if not peers.has_optax():
        pytest.skip("optax is not installed")
    call = peers.of_rule("sm3", x, grad)["optax jit"]
    call()
    kept = next(c.cell_contents for c in call.__closure__ if isinstance(c.cell_contents, list))  # type: ignore[attr-defined]
    assert torch.allclose(torch.tensor(kept[0].tolist()).flatten(), ours, atol=1e-6)


def test_the_rivals_of_the_trimmed_mean_find_the_same_median() -> None:
    deltas = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    ours = ops.trimmed_mean(deltas, 4, backend="reference")
    for call in peers.medians(deltas).values():
        assert torch.equal(call(), ours)  # type: ignore[arg-type]


def test_verdicts_are_honest() -> None:
    rows = [
        row(of_bound=0.91),
        row(op="server_yogi", of_bound=0.89, median=1.0),
        row(op="server_yogi", kind="peer", backend="optax jit", median=1.6),
    ]
    verdicts = {(v.target.ops, v.target.measure): v for v in targets.judge(rows)}
    assert verdicts[("server_adam",), "bound"].met is True
    assert verdicts[("server_yogi",), "bound"].met is False
    assert verdicts[("server_yogi",), "optax jit"].measured == pytest.approx(1.6)
    assert verdicts[("server_yogi",), "optax jit"].met is False
    assert verdicts[("client_sm3",), "optax jit"].met is None


def test_the_latency_verdict_is_of_the_slowest_op() -> None:
    target = next(t for t in targets.TARGETS if "norms" in t.ops)
    medians = dict(zip(target.ops, (3e-6, 12e-6, 5e-6, 6e-6), strict=True))
    rows = [row(op=op, size=targets.SMALL, median=median) for op, median in medians.items()]
    verdict = next(v for v in targets.judge(rows) if v.target == target)
    assert (verdict.op, verdict.measured, verdict.met) == ("clip", 12e-6, False)
    assert next(v for v in targets.judge(rows[:3]) if v.target == target).met is None


def test_targets_name_ops_that_exist() -> None:
    assert {op for target in targets.TARGETS for op in target.ops} <= set(cases.CASES)


def test_choosing_ops() -> None:
    assert kernels.choose_ops(["client_sm3*", "norms"]) == ("client_sm3", "client_sm3_1", "client_sm3_adam", "norms")
    with pytest.raises(ValueError, match="matches none of"):
        kernels.choose_ops(["server_x*"])


@pytest.mark.parametrize(("value", "text"), [(1.5, "1.5 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 us")])
def test_times_have_units(value: float, text: str) -> None:
    assert table.seconds(value) == text


def test_without_the_probe_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fastfed._core", None)
    told: list[str] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    plan = kernels.Plan((1000,), ("norms",), 1, 1, "reference")
    monkeypatch.setenv("NPROC", "1")
    rows = list(kernels.run(plan, told.append))
    assert "no streaming bound" in told[0]
    assert all(one.bound is None and one.of_bound is None for one in rows)


# ---- on a card ------------------------------------------------------------------------------------------------------


class PretendedCard(Clock):
    """A device that computes beside the host: what it was handed takes time when somebody waits for it."""

    left = 0.0

    def handed(self, seconds: float) -> timing.Call:
        def call() -> None:
            self.left += seconds
            self.now += 1e-6

        return call

    def synchronise(self) -> None:
        self.now += self.left
        self.left = 0.0


def test_the_clock_is_read_when_the_card_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    card = PretendedCard()
    monkeypatch.setattr(timing, "default_timer", card)
    calls = {"slow": card.handed(0.5), "quick": card.handed(1e-4)}
    timings = timing.take_turns(calls, rounds=3, slice_seconds=1e-3, synchronise=card.synchronise)
    assert timings["slow"].median == pytest.approx(0.5, rel=1e-3)
    assert timings["quick"].median == pytest.approx(1e-4, rel=0.02)  # nothing of its neighbour's
    assert timings["quick"].loops >= 10


@pytest.mark.exhaustive
def test_every_op_runs_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of the CPU, which stand for a card's: the same JSON with the card's name, and a bound of torch's."""
    waited: list[None] = []
    place = Place(CPU, "Made-up 9000", lambda: waited.append(None))
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setattr(bound, "find_probe", lambda: pytest.fail("the probe of the host is none of a card's"))
    rows = list(kernels.run(kernels.Plan((1000,), tuple(cases.CASES), 1, 1, "reference", place)))
    assert {one.op for one in rows} == set(cases.CASES)
    assert {one.device for one in rows} == {"Made-up 9000"}
    assert set(rows[0].as_dict()) == FIELDS
    assert len({one.op for one in rows if one.backend == kernels.BOUND}) == len(cases.CASES)
    assert len(waited) >= 4 * len(rows)  # around the calibration and the rounds of each


def test_the_bound_of_a_card_moves_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *given, **further: (made.append(ones(*given, **further)), made[-1])[1])
    call = bound.on_device(1000, reads=1, updates=3, device=CPU)
    call()
    assert made[0].numel() * bound.UPDATE == 1000 * bound.bytes_per_element(1, 3)


@pytest.mark.parametrize("op", list(cases.CASES))
def test_an_op_and_its_peers_keep_to_the_device(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that refuses to be mixed with the host."""
    reference = registry.BACKENDS["reference"]
    monkeypatch.setitem(registry.BACKENDS, "reference", replace(reference, devices=lambda: (pretend.NAME,)))
    bout = cases.CASES[op].prepare(100, "reference", torch.device(pretend.NAME))
    for call in (bout.ours, *bout.others.values()):
        made = call()
        assert not isinstance(made, torch.Tensor) or made.device.type == pretend.NAME


@pytest.mark.parametrize("bench", ["kernels", "rounds"])
def test_without_a_card_one_sentence_and_exit_code_2(bench: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = CliRunner().invoke(cli.app, ["bench", bench, "--device", "cuda"])
    assert said.exit_code == 2
    words = " ".join(said.stderr.replace("│", " ").split())
    assert "no CUDA device: torch" in words


@pytest.mark.parametrize(("device", "sentence"), [("meta", "must be cpu or a CUDA device"), ("gpu", "device type")])
def test_other_devices_are_refused(device: str, sentence: str) -> None:
    said = CliRunner().invoke(cli.app, ["bench", "kernels", "--device", device])
    assert said.exit_code == 2
    assert sentence in " ".join(said.stderr.split())


def test_a_card_is_found_with_its_name_and_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    said = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda index: "Made-up 9000",
        "get_device_capability": lambda index: (9, 0),
        "mem_get_info": lambda index: (1, 2),
        "synchronize": waited.append,
        "memory_allocated": lambda device: 10,
        "reset_peak_memory_stats": lambda device: None,
        "max_memory_allocated": lambda device: 25,
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr("fastfed.bench.common.place.find_device", torch.device)
    place = find_place("cuda")
    place.synchronise()
    assert (place.name, place.on_card, waited) == ("Made-up 9000", True, [torch.device("cuda:0")])
    assert place.grown_by(lambda: None) == 15
    assert find_place("cpu").name == "cpu"
