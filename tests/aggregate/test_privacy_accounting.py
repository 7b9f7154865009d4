"""Privacy: the accountants against closed forms and integrals, the noise that a budget asks for, adaptive clipping."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from fastfed import privacy
from fastfed.privacy import Ledger, Privacy, Quantile, next_clip, noise_for, noise_std
from fastfed.saved import recipe

# ---- oracles --------------------------------------------------------------------------------------------------------


def rdp_by_binomials(rate: float, noise: float, order: int) -> float:
    """Renyi divergence of a Poisson-sampled Gaussian at a whole order, as a sum over how often the client is drawn."""
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    largest = max(terms)
    return (largest + math.log(math.fsum(math.exp(term - largest) for term in terms))) / (order - 1)


def rdp_by_integral(rate: float, noise: float, order: float) -> float:
    """The same at any order: the mean of (dP/dQ)^order over Q = N(0, noise^2)."""
    x, step = np.linspace(-12 * noise, order + 12 * noise, 400_001, retstep=True)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    return float(special.logsumexp(stats.norm.logpdf(x, scale=noise) + order * ratio) + math.log(step)) / (order - 1)


def epsilon_of(rdp: float, order: float, delta: float) -> float:
    return rdp + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


def delta_of_gaussian(noise: float, epsilon: float) -> float:
    """Delta of one Gaussian mechanism, exactly."""
    left, right = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
    return float(stats.norm.cdf(left) - math.exp(epsilon) * stats.norm.cdf(right))


def delta_of_sampled(rate: float, noise: float, epsilon: float) -> float:
    """Delta of one Poisson-sampled Gaussian mechanism, the worse of adding and removing, by integration."""
    x, step = np.linspace(-14 * noise, 1 + 14 * noise, 400_001, retstep=True)
    without = stats.norm.pdf(x, scale=noise)
    with_client = (1 - rate) * without + rate * stats.norm.pdf(x, loc=1, scale=noise)
    removed = np.maximum(with_client - math.exp(epsilon) * without, 0).sum() * step
    added = np.maximum(without - math.exp(epsilon) * with_client, 0).sum() * step
    return float(max(removed, added))


def ledger(noise: float, rate: float, delta: float = 1e-5, **settings: Any) -> Ledger:
    return Ledger(Privacy(1.0, noise, delta, **settings), rate)


# ---- epsilon --------------------------------------------------------------------------------------------------------


def test_the_published_check() -> None:
    renyi = ledger(1.0, 0.1, 0.0025)
    assert renyi.epsilon(500) == pytest.approx(13.12, abs=0.01)
    assert renyi.order(500) == 2
    tight = ledger(1.0, 0.1, 0.0025, accountant="pld")
    assert tight.epsilon(500) == pytest.approx(11.50, abs=0.01)
    assert tight.order(500) is None


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta"),
    [
        (0.1, 1.0, 500, 0.0025),  # order 2
        (0.01, 1.1, 1000, 1e-5),
        (0.001, 0.7, 30, 1e-6),
        (0.5, 4.0, 20, 1e-5),
        (0.02, 8.0, 5, 1e-7),  # a high order
    ],
)
def test_renyi_epsilon_agrees_with_sum_and_integral(rate: float, noise: float, rounds: int, delta: float) -> None:
    found = ledger(noise, rate, delta)
    epsilon, order = found.epsilon(rounds), found.order(rounds)
    assert order is not None
    exact = epsilon_of(rounds * rdp_by_integral(rate, noise, order), order, delta)
    assert exact * (1 - 1e-9) <= epsilon <= exact * (1 + 1e-4)  # of a broken order, the library sums up a bound
    whole = [epsilon_of(rounds * rdp_by_binomials(rate, noise, a), a, delta) for a in (*range(2, 64), 128, 256, 512)]
    assert epsilon <= min(whole) * (1 + 1e-9)
    if order == int(order):
        assert epsilon == pytest.approx(min(whole), rel=1e-9)


def test_renyi_epsilon_without_sampling() -> None:
    found = ledger(3.0, 1.0)
    order = found.order(7)
    assert order is not None
    assert found.epsilon(7) == pytest.approx(epsilon_of(7 * order / (2 * 3.0**2), order, 1e-5), rel=1e-12)
    best = optimize.minimize_scalar(lambda a: epsilon_of(7 * a / (2 * 3.0**2), a, 1e-5), (2, 6, 60)).fun
    assert best - 1e-12 <= found.epsilon(7) < best + 0.01


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(2.0, 1, 1e-5), (5.0, 30, 1e-6), (1.0, 16, 0.01)])
def test_loss_distribution_agrees_with_the_exact_gaussian(noise: float, rounds: int, delta: float) -> None:
    epsilon = ledger(noise, 1.0, delta, accountant="pld").epsilon(rounds)
    together = noise / math.sqrt(rounds)  # Gaussians compose into one
    exact = optimize.brentq(lambda e: delta_of_gaussian(together, e) - delta, 0, 100, xtol=1e-12)
    assert exact - 1e-9 <= epsilon <= exact + 2e-4


@pytest.mark.parametrize(("rate", "noise", "delta"), [(0.1, 1.0, 0.0025), (0.3, 0.8, 1e-4), (0.01, 0.6, 1e-6)])
def test_loss_distribution_agrees_with_the_integral_of_one_sampled_round(
    rate: float, noise: float, delta: float
) -> None:
    epsilon = ledger(noise, rate, delta, accountant="pld").epsilon(1)
    assert delta_of_sampled(rate, noise, epsilon) <= delta * (1 + 1e-6) < delta_of_sampled(rate, noise, epsilon - 2e-4)


def test_the_loss_distribution_is_tighter_and_both_grow_with_rounds() -> None:
    renyi, tight = ledger(1.2, 0.05), ledger(1.2, 0.05, accountant="pld")
    for rounds in (1, 10, 100):
        assert 0 < tight.epsilon(rounds) < renyi.epsilon(rounds)
    for found in (renyi, tight):
        spent = [found.epsilon(rounds) for rounds in (0, 1, 2, 10, 100)]
        assert spent[0] == 0.0
        assert spent == sorted(set(spent))


def test_a_wide_range_of_losses_takes_a_coarser_grid_and_keeps_its_bound() -> None:
    tight = ledger(0.5, 1.0, accountant="pld").epsilon(100)
    exact = optimize.brentq(lambda e: delta_of_gaussian(0.5 / 10, e) - 1e-5, 100, 500)
    assert exact - 1e-9 <= tight <= exact + 0.01


def test_without_noise_epsilon_is_infinite() -> None:
    for accountant in ("rdp", "pld"):
        found = Ledger(Privacy(None, 0, 1e-5, accountant=accountant), 0.1)  # type: ignore[arg-type]
        assert found.epsilon(1) == math.inf
        assert found.epsilon(0) == 0.0
        assert found.order(1) is None
        assert found.rounds_within(1e9) == 0


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("rate", [1e-310, 1e-9, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("noise", [1e-300, 1e-5, 1e5, 1e300])
def test_extreme_settings_never_look_private_without_noise(accountant: str, rate: float, noise: float) -> None:
    epsilon = ledger(noise, rate, accountant=accountant).epsilon(3)
    assert (epsilon > 1e8) if noise < 1 else (0 <= epsilon < 0.02)


def test_rounds_too_cheap_to_compute_still_add_up() -> None:
    assert ledger(1e5, 1e-9).epsilon(1000) == 0.0
    assert ledger(1e5, 1e-9).epsilon(10**18) > 1


def test_an_order_that_cannot_be_computed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_accounting as dp

    true_rdp = dp.rdp.RdpAccountant.rdp.fget
    wanted = ledger(1.0, 0.1004).epsilon(10)
    order_2 = 9  # of the default orders 1.1, 1.2, ...
    monkeypatch.setattr(
        dp.rdp.RdpAccountant, "rdp", property(lambda self: np.where(np.arange(156) == order_2, np.nan, true_rdp(self)))
    )
    privacy._rdp_of_round.cache_clear()
    assert ledger(1.0, 0.1004).epsilon(10) == wanted > 0
    privacy._rdp_of_round.cache_clear()


def test_a_round_is_accounted_for_once() -> None:
    found = ledger(1.2345, 0.0777)
    before = privacy._rdp_of_round.cache_info().misses
    for rounds in range(50):
        found.epsilon(rounds)
        found.order(rounds)
    assert privacy._rdp_of_round.cache_info().misses == before + 1


def test_the_loss_distribution_is_asked_once_for_a_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Ledger, "_by_losses", lambda self, rounds, loose: asked.append(rounds) or 1.5)
    found = ledger(1.0, 0.1, accountant="pld")
    assert [found.epsilon(rounds) for rounds in (3, 4, 3, 4, 3)] == [1.5] * 5
    assert asked == [3, 4]


def test_the_cost_of_both_releases_of_adaptive_clipping_is_that_of_the_noise() -> None:
    import dp_accounting as dp

    settings = Privacy(0.3, 1.1, 1e-5, adaptive=Quantile(count_noise=2.0))
    deltas, count = noise_std(settings, 1.0, 1.0), 2 * 2.0  # multipliers: a client moves the count by 1/2
    both = dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([dp.GaussianDpEvent(deltas), dp.GaussianDpEvent(count)]))
    with privacy._quiet():
        wanted = dp.rdp.RdpAccountant().compose(both, 100).get_epsilon(1e-5)
    assert Ledger(settings, 0.1).epsilon(100) == pytest.approx(wanted, rel=1e-12)


# ---- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.05, 0.9, 1.0, 3.0, 8.0, 40.0])
def test_rounds_within_a_budget(target: float) -> None:
    found = ledger(1.0, 0.02)
    rounds = found.rounds_within(target)
    assert found.epsilon(rounds) <= target < found.epsilon(rounds + 1)
    assert (rounds == 0) == (target < found.epsilon(1))


def test_rounds_within_what_was_spent_are_those_rounds() -> None:
    found = ledger(1.0, 0.02)
    for rounds in (1, 2, 3, 100, 12_345):
        assert found.rounds_within(found.epsilon(rounds)) == rounds


def test_rounds_within_a_budget_by_loss_distribution() -> None:
    found = ledger(0.9, 0.1, accountant="pld")
    for target in (3.0, 0.5):
        rounds = found.rounds_within(target)
        assert found.epsilon(rounds) <= target < found.epsilon(rounds + 1)
    assert found.rounds_within(3.0) > ledger(0.9, 0.1).rounds_within(3.0) > 0


def test_rounds_without_end_have_an_end() -> None:
    assert ledger(1e6, 1e-9).rounds_within(1.0) == 10**9


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate", "accountant"),
    [
        (8.0, 1e-5, 500, 0.1, "rdp"),
        (1.0, 1e-6, 1000, 0.01, "rdp"),
        (0.3, 1e-5, 10, 1.0, "rdp"),
        (500.0, 1e-5, 3, 0.9, "rdp"),
        (2.0, 1e-5, 50, 0.1, "pld"),
        (0.01, 1e-10, 4, 1.0, "pld"),  # out of reach for "rdp"
    ],
)
def test_noise_for_a_budget(epsilon: float, delta: float, rounds: int, rate: float, accountant: Any) -> None:
    noise = noise_for(epsilon, delta, rounds, rate, accountant)
    assert ledger(noise, rate, delta, accountant=accountant).epsilon(rounds) <= epsilon
    assert ledger(noise * (1 - 5e-5), rate, delta, accountant=accountant).epsilon(rounds) > epsilon


def test_noise_for_a_budget_without_sampling_is_the_analytic_one() -> None:
    exact = optimize.brentq(lambda s: delta_of_gaussian(s, 1.0) - 1e-5, 0.1, 100)
    found = noise_for(1.0, 1e-5, 9, 1.0, "pld")
    assert exact <= found / 3 * (1 + 1e-9)
    assert found / 3 == pytest.approx(exact, rel=1e-4)


def test_a_budget_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^epsilon: must be at least 0\.0147\d, .* got 0\.01$"):
        noise_for(0.01, 1e-10, 1, 1.0)


# ---- noise and clipping ---------------------------------------------------------------------------------------------


def test_noise_std() -> None:
    assert noise_std(Privacy(3.0, 2.0, 1e-5), 0.5, 40.0) == 2.0 * 0.5 / 40
    assert noise_std(Privacy(None, 0, 1e-5), None, 40.0) == 0.0
    assert noise_std(Privacy(3.0, 0.0, 1e-5, adaptive=Quantile()), 0.5, 40.0) == 0.0
    given = noise_std(Privacy(3.0, 1.5, 1e-5, adaptive=Quantile(count_noise=2.5)), 0.5, 40.0)
    assert given == pytest.approx((1.5**-2 - 5.0**-2) ** -0.5 * 0.5 / 40, rel=1e-14)
    assert noise_std(Privacy(3.0, 1e-200, 1e-5, adaptive=Quantile()), 1.0, 10.0) == pytest.approx(1e-201)
    default = noise_std(Privacy(3.0, 1.5, 1e-5, adaptive=Quantile()), 0.5, 40.0)
    assert default == pytest.approx((1.5**-2 - (2 * 40 / 20) ** -2) ** -0.5 * 0.5 / 40, rel=1e-14)
    assert default > noise_std(Privacy(3.0, 1.5, 1e-5), 0.5, 40.0)


def test_too_little_noise_on_the_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^count_noise: must be more than half the noise multiplier, 0\.5, got 0\.5"):
        Privacy(1.0, 1.0, 1e-5, adaptive=Quantile(count_noise=0.5))
    small_cohort = Privacy(1.0, 1.0, 1e-5, adaptive=Quantile())
    with pytest.raises(ValueError, match=r"^count_noise: must be more than half the noise multiplier, 0\.5, got 0\.25"):
        noise_std(small_cohort, 1.0, 5.0)


def literal_next_clip(setting: Quantile, clip: float, norms: list[float], expected: float, noise: float) -> float:
    total = 0.0
    for norm in norms:
        total += (1.0 if norm <= clip else 0.0) - 0.5
    deviation = expected / 20 if setting.count_noise is None else setting.count_noise
    share = (total + deviation * noise) / expected + 0.5
    return clip * math.exp(-setting.lr * (share - setting.quantile))


@pytest.mark.parametrize("setting", [Quantile(), Quantile(0.8, 0.5, 3.0), Quantile(0.1, 1.5, 0.0)])
@pytest.mark.parametrize("norms", [[], [0.0], [1.3, 0.2, 7.0, 1.3000001, math.inf], [9.0] * 11])
def test_next_clip(setting: Quantile, norms: list[float]) -> None:
    for noise in (0.0, -1.7, 2.4):
        found = next_clip(setting, 1.3, torch.tensor(norms, dtype=torch.float64), 6.5, noise)
        assert found == pytest.approx(literal_next_clip(setting, 1.3, norms, 6.5, noise), rel=1e-14)


def test_a_norm_at_the_bound_is_below_it_and_the_bound_then_falls() -> None:
    assert next_clip(Quantile(), 1.0, np.array([1.0, 1.0]), 2.0, 0.0) == math.exp(-0.2 * 0.5)
    assert next_clip(Quantile(), 1.0, np.array([1.1, 1.1]), 2.0, 0.0) == math.exp(0.2 * 0.5)


def test_the_bound_finds_the_quantile() -> None:
    generator, clip = np.random.default_rng(5), 0.01
    for _ in range(400):
        clip = next_clip(Quantile(0.7), clip, generator.exponential(size=100), 100.0, generator.standard_normal())
    assert clip == pytest.approx(-math.log(0.3), rel=0.1)


# ---- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip: must be a finite number > 0, or None, got 0.0"),
        ({"clip": math.inf}, "clip: must be a finite number > 0, or None, got inf"),
        ({"clip": None}, "clip: must be a finite number > 0 where there is noise, got None with noise=1.0"),
        ({"clip": None, "noise": 0, "adaptive": Quantile()}, "clip: must be a finite number > 0 for adaptive clipping"),
        ({"noise": -0.1}, "noise: must be a finite number >= 0, got -0.1"),
        ({"noise": math.nan}, "noise: must be a finite number >= 0, got nan"),
        ({"noise": "1"}, "noise: must be a finite number >= 0, got '1'"),
        ({"delta": 0.0}, "delta: must be a number between 0 and 1, without both, got 0.0"),
        ({"delta": 1}, "delta: must be a number between 0 and 1, without both, got 1"),
        ({"target_epsilon": 0}, "target_epsilon: must be a finite number > 0, or None, got 0"),
        ({"target_epsilon": 3.0, "noise": 0.0}, "target_epsilon: must be None where noise is 0"),
        ({"accountant": "gdp"}, "accountant: must be 'rdp' or 'pld', got 'gdp'"),
        ({"adaptive": 0.5}, "adaptive: must be fastfed.privacy.Quantile"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Privacy(**({"clip": 1.0, "noise": 1.0, "delta": 1e-5} | settings))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Quantile(quantile=1.0), "quantile: must be"),
        (lambda: Quantile(lr=0.0), "lr: must be"),
        (lambda: Quantile(count_noise=-1.0), "count_noise: must be"),
        (lambda: Ledger("1", 0.1), "privacy: must be"),
        (lambda: ledger(1.0, 0.0), "rate: must be a number in (0, 1], got 0.0"),
        (lambda: ledger(1.0, 1.1), "rate: must be"),
        (lambda: ledger(1.0, 0.1).epsilon(-1), "rounds: must be a whole number >= 0, got -1"),
        (lambda: ledger(1.0, 0.1).epsilon(1.0), "rounds: must be"),
        (lambda: ledger(1.0, 0.1, accountant="pld").epsilon(True), "rounds: must be"),
        (lambda: ledger(1.0, 0.1).order("2"), "rounds: must be"),
        (lambda: ledger(1.0, 0.1, accountant="pld").order(-1), "rounds: must be"),
        (lambda: ledger(1.0, 0.1).rounds_within(math.inf), "epsilon: must be"),
        (lambda: noise_for(0.0, 1e-5, 10, 0.1), "epsilon: must be"),
        (lambda: noise_for(1.0, 0.0, 10, 0.1), "delta: must be"),
        (lambda: noise_for(1.0, 1e-5, 0, 0.1), "rounds: must be"),
        (lambda: noise_for(1.0, 1e-5, 10, 2), "rate: must be"),
        (lambda: noise_for(1.0, 1e-5, 10, 0.1, "x"), "accountant: must be"),
        (lambda: noise_std(Privacy(1.0, 1.0, 0.1), 1.0, 0.0), "expected: must be"),
        (lambda: noise_std(Privacy(1.0, 1.0, 0.1), -1.0, 1.0), "clip: must be"),
        (lambda: noise_std(Privacy(1.0, 1.0, 0.1), None, 1.0), "clip: must be a finite number > 0 where"),
        (lambda: next_clip(Quantile(), 0.0, np.ones(2), 2.0, 0.0), "clip: must be"),
        (lambda: next_clip(Quantile(), 1.0, np.ones((2, 1)), 2.0, 0.0), "norms: must have shape (n,), got (2, 1)"),
        (
            lambda: next_clip(Quantile(), 1.0, np.array([math.nan]), 2.0, 0.0),
            "norms: must be >= 0 and not NaN, got nan",
        ),
        (lambda: next_clip(Quantile(), 1.0, np.array([-1.0]), 2.0, 0.0), "norms: must be >= 0"),
        (lambda: next_clip(Quantile(), 1.0, np.ones(2), math.nan, 0.0), "expected: must be"),
        (lambda: next_clip(Quantile(), 1.0, np.ones(2), 2.0, math.inf), "noise: must be"),
        (lambda: next_clip(Quantile(lr=1e4), 1.0, np.full(9, 2.0), 2.0, 0.0), "clip: a step of exp("),
    ],
)
def test_bad_calls(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_settings_go_through_json() -> None:
    for settings in (Privacy(None, 0, 0.1), Privacy(1.5, 0.7, 1e-6, 8.0, "pld", Quantile(0.6, 0.1, 4.0))):
        written = json.dumps(recipe.to_json("privacy", settings), allow_nan=False)
        assert recipe.from_json(json.loads(written)) == settings


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'fastfed\[privacy\]'"):
        ledger(1.0, 0.1)
    assert Ledger(Privacy(1.0, 0.0, 1e-5), 0.1).epsilon(3) == math.inf  # needs no accountant


def test_the_library_is_imported_only_when_asked() -> None:
    code = "import sys, fastfed.privacy; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- logging --------------------------------------------------------------------------------------------------------


def test_the_library_logs_nothing_and_configures_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger(1.0, 0.1001).epsilon(10)  # some orders do not converge
    assert not caplog.records
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    ledger(1.0, 0.1002).epsilon(10)
    assert root.handlers == []


def test_all_else_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ledger(1.0, 0.1003).epsilon(10)
    logging.getLogger("absl").warning("afterwards")
    with privacy._quiet():
        logging.getLogger("absl").warning("dropped")
        logging.getLogger("mine").warning("mine")
        other = threading.Thread(target=logging.getLogger("absl").warning, args=("elsewhere",))
        other.start()
        other.join()
    assert [record.message for record in caplog.records] == ["afterwards", "mine", "elsewhere"]
