"""The loop of a run: rounds until its end, with hooks around them."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .hooks import Evaluated, Hooked, OnRound, Patience, Waiting
from .ranks import RankLost, Ranks, is_shared, shared
from .record.evaluate import training_rows, validation_rows
from .record.history import Row

if TYPE_CHECKING:
    from .simulation import Simulation

_MOST_ROUNDS = 1 << 31
TRAIN_LOSS = "train_loss"  # the one metric that every round has, evaluated or not


@dataclass(frozen=True)
class End:
    """Where a run ends: after so many `rounds` in all, or when a simulated clock comes to the time `clock` (seconds;
    infinite: never). A round that the clock cuts is completed with the updates that are there if `flush`."""

    rounds: int
    clock: float = math.inf
    flush: bool = False

    @property
    def known_rounds(self) -> int | None:
        """After how many rounds it ends, if that is known."""
        return None if self.rounds == _MOST_ROUNDS else self.rounds


def end_of_run(sim: Simulation, rounds: int | None, until: int | None, until_clock: float | None, flush: bool) -> End:
    """What the arguments of ``Simulation.run`` mean for a run that is where it is."""
    if until_clock is not None:
        if sim.clocked is None:
            raise ValueError("until_clock: only a simulated clock (timing EventDriven or Waves) has a time")
        if not 0 <= until_clock < math.inf:
            raise ValueError(f"until_clock: must be a number of seconds >= 0, got {until_clock!r}")
    last = _last_round(sim.round, rounds, until, until_clock)
    if flush and until_clock is None:
        raise ValueError("flush: only a run that ends by until_clock may leave a partly filled buffer")
    affordable = sim.ledger.most_rounds()
    last = last if affordable is None else min(last, max(sim.round, affordable))
    return End(last, math.inf if until_clock is None else until_clock, flush)


def _last_round(done: int, rounds: int | None, until: int | None, until_clock: float | None) -> int:
    if rounds is None and until is None and until_clock is not None:
        return _MOST_ROUNDS
    if (rounds is None) == (until is None):
        raise ValueError(f"rounds: give either rounds or until, got {rounds!r} and {until!r}")
    wanted = rounds if until is None else until
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ValueError(f"rounds: must be a whole number >= 0, got {wanted!r}")
    return done + wanted if until is None else wanted


def check_intervals(evaluate_every: int, checkpoint_every: int, keep: int) -> None:
    """Numbers of rounds and of checkpoints are whole; only evaluations may be left out."""
    for name, value in (("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every), ("keep", keep)):
        least = 0 if name == "evaluate_every" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: must be a whole number >= {least}, got {value!r}")


def check_hooks(hooks: Sequence[Hooked], on_round: OnRound | None) -> None:
    """What is given as a hook is one."""
    if on_round is not None and not callable(on_round):
        raise TypeError(f"on_round: must be a function of the simulation and a row, got {on_round!r}")
    for hook in hooks:
        if not isinstance(hook, Hooked):
            raise TypeError(f"hooks: must have the methods of fastfed.hooks.Hook, got {hook!r}")


def check_target(
    sim: Simulation, target: Mapping[str, float] | None, evaluate_every: int, evaluated: Evaluated
) -> None:
    """A target is one that this run can measure, and so is a training set that is to be evaluated."""
    if evaluated.training and not evaluate_every:
        raise ValueError("evaluate_training: would be ignored with evaluate_every=0")
    for name in target or ():
        check_measured(sim, "target", name, evaluate_every, evaluated)


def check_measured(sim: Simulation, argument: str, name: str, evaluate_every: int, evaluated: Evaluated) -> None:
    """Refuses a column that the rows of this run will not have."""
    metrics = dict.fromkeys((sim.metric_name, *(sim.settings.metrics or ())))
    sets: dict[str, object] = {"test": sim.fed.test, "validation": validation_rows(sim.fed)}
    sets["trainset"] = training_rows(sim.fed) if evaluated.training else None
    held = [part for part, examples in sets.items() if examples is not None]
    tested = {f"{part}_{one}" for part in held for one in ("loss", *metrics)}
    spread = {"client": evaluated.per_client, "tuned": evaluated.fine_tune is not None}
    of_clients = [prefix for prefix, wanted in spread.items() if wanted]
    tested |= {f"{prefix}_{one}_{part}" for prefix in of_clients for one in metrics for part in ("mean", "p10", "p90")}
    if name == TRAIN_LOSS:
        return
    if name not in tested:
        known = ", ".join([TRAIN_LOSS, *sorted(tested)])
        raise ValueError(f"{argument}: this run does not measure {name!r}; it measures {known}")
    if not evaluate_every:
        raise ValueError(f"{argument}: {name} is never measured with evaluate_every=0")


def waits(sim: Simulation, patience: int | Patience | None, evaluate_every: int, evaluated: Evaluated) -> list[Waiting]:
    """The hook that a patience asks for, if there is one, which looks at a column that there is."""
    if patience is None:
        return []
    if not isinstance(patience, Patience):
        try:
            patience = Patience(patience)
        except ValueError as error:
            raise ValueError(f"patience: {str(error).partition(': ')[2]}") from None
    column = sim.metric if patience.column is None else patience.column
    check_measured(sim, "patience", column, evaluate_every, evaluated)
    return [Waiting(patience, column)]


def run_rounds(sim: Simulation, end: End, hooks: Sequence[Hooked]) -> None:
    """Rounds until the `end`, or until a hook asks to stop."""
    begun: list[Hooked] = []
    with ExitStack() as ends:  # of all hooks, even if one fails

        def begin() -> None:
            for hook in hooks:
                hook.begin(sim)
                begun.append(hook)
                ends.callback(hook.end, sim)

        all_begun = False
        try:
            _heard(sim.ranks, begin)
            all_begun = True
            _run_rounds(sim, end, hooks)
        except RankLost:
            raise  # what the lost one kept cannot be saved
        except BaseException as error:  # Ctrl-C above all, but nothing that was trained should be lost to any error
            # Ranks save together: an error that one of them has alone leaves the others elsewhere.
            if sim.between_rounds and (sim.ranks is None or (all_begun and is_shared(error))):
                _heard(sim.ranks, lambda: _interrupt(sim, begun))
            raise
        _heard(sim.ranks, ends.close)


def _heard(ranks: Ranks | None, function: Callable[[], None]) -> None:
    """Calls what hooks do; of several ranks, an error of one is an error of all."""
    if ranks is None:
        function()
    else:
        ranks.heard(function)


def _interrupt(sim: Simulation, hooks: Sequence[Hooked]) -> None:
    for hook in hooks:
        hook.interrupted(sim)


def _run_rounds(sim: Simulation, end: End, hooks: Sequence[Hooked]) -> None:
    time_is_up = False
    while sim.round < end.rounds and not time_is_up and not any(hook.asks_to_stop(sim) for hook in hooks):
        row = sim.step_before(end.clock)
        time_is_up = row is None
        row = sim.flush() if time_is_up and end.flush else row
        _heard(sim.ranks, partial(_after_round, sim, end, hooks, row, time_is_up))
        if sim.ranks is not None and sim.ranks.interrupted:
            raise shared(KeyboardInterrupt())  # on all ranks, after the same round


def _after_round(sim: Simulation, end: End, hooks: Sequence[Hooked], row: Row | None, time_is_up: bool) -> None:
    if row is None:
        _interrupt(sim, hooks)
        return
    last = time_is_up or _is_last(sim, end)
    for hook in hooks:
        hook.after_round(sim, row, last)
        last = last or hook.asks_to_stop(sim)


def _is_last(sim: Simulation, end: End) -> bool:
    """Whether no other round is complete by the `end`."""
    if sim.round == end.rounds or end.clock == math.inf or sim.clocked is None:
        return sim.round == end.rounds
    if sim.clocked.plan(sim.round, sim.tuner.tuning, end.clock) is not None:
        return False
    return not (end.flush and len(sim.clocked.arrived(sim.round, sim.tuner.tuning)))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. Only the main thread is ever interrupted by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[Any, Any]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting and callable(before):
        before(*waiting[0])
