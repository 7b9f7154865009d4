"""Dealing rows to clients: the laws of the draws, exact sizes, nothing twice, the same bits; files of partitions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fastfed import kernels
from fastfed.data import DataError, Dataset, Examples, Federated, exact, partition, sampling
from fastfed.data.partition import dirichlet, dirichlet_by_label, iid, natural, pachinko
from fastfed.data.partition_file import load_partition, save_partition
from fastfed.kernels import Stream
from fastfed.purposes import Purpose

SIGNIFICANCE = 1e-3  # of every statistical test; seeds are fixed, so each passes always or never


def labelled(labels: Tensor, **more: Any) -> Dataset:
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    return Dataset("made up", Examples(inputs, labels), **more)


def balanced(rows: int, classes: int, **more: Any) -> Dataset:
    return labelled(torch.arange(rows) % classes, **more)


def two_levels(rows: int, coarse: int, fine_each: int) -> Dataset:
    fine = torch.arange(rows) % (coarse * fine_each)
    return labelled(fine, coarse=fine // fine_each)


def counts_of(fed: Federated, labels: Tensor) -> np.ndarray:
    """(clients, classes)."""
    kinds = int(labels.max()) + 1
    return np.stack([torch.bincount(labels[fed.rows_of(i)], minlength=kinds).numpy() for i in range(len(fed))])


def assert_nothing_twice(fed: Federated) -> None:
    assert fed.rows.unique().numel() == fed.rows.numel()


# ---- arithmetic and samplers ----------------------------------------------------------------------------------------


def test_exact_functions_are_the_usual_ones() -> None:
    u = np.linspace(1e-6, 1, 20_001)
    np.testing.assert_allclose(exact.log(u**40), np.log(u**40), rtol=2e-15, atol=1e-16)
    x = np.linspace(-700, 700, 20_001)
    np.testing.assert_allclose(exact.exp(x), np.exp(x), rtol=1e-15)
    assert exact.exp(np.array([-np.inf, -1e9, 0.0])).tolist() == [0, 0, 1]
    np.testing.assert_allclose(exact.cos_of_turns(u), np.cos(2 * np.pi * u), atol=2e-15)


def test_normals_are_normal() -> None:
    drawn = sampling.normals(50, Stream(1), torch.arange(400))
    assert stats.kstest(drawn.ravel(), "norm").pvalue > SIGNIFICANCE
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.2


@pytest.mark.parametrize("shape", [0.01, 0.3, 1.0, 4.0, 250.0])
def test_gammas_are_gamma(shape: float) -> None:
    logs = sampling.log_gammas(np.array([shape, shape]), Stream(2), torch.arange(4000))
    law = stats.loggamma(shape)
    assert np.isfinite(logs).all()
    for column in logs.T:
        assert stats.kstest(column, law.cdf).pvalue > SIGNIFICANCE
    assert abs(stats.spearmanr(*logs.T).statistic) < 0.06


def test_a_dirichlet_share_is_beta() -> None:
    shapes = np.array([0.05, 0.2, 1.5])
    weights = sampling.shares(sampling.log_gammas(shapes, Stream(3), torch.arange(5000)))
    share = weights / weights.sum(axis=1, keepdims=True)
    for column, shape in zip(share.T, shapes, strict=True):
        assert stats.kstest(column, stats.beta(shape, shapes.sum() - shape).cdf).pvalue > SIGNIFICANCE


def test_a_gamma_does_not_depend_on_its_neighbours() -> None:
    shapes = np.array([0.1, 2.0])
    every = sampling.log_gammas(shapes, Stream(4), torch.arange(300))
    some = sampling.log_gammas(shapes, Stream(4), torch.tensor([299, 7, 123]))
    assert np.array_equal(some, every[[299, 7, 123]])


def test_chosen_rows_are_those_of_one_row() -> None:
    weights = np.array([[0.0, 1.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.5]])
    numbers = sampling.uniforms(500, Stream(5))
    for row in (0, 1):
        picked = sampling.choose_rows(weights, np.full(500, row), numbers)
        assert np.array_equal(picked, sampling.choose(weights[row], numbers))
        assert set(picked) == set(np.flatnonzero(weights[row]))


# ---- Dirichlet ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_class_counts_are_beta_binomial(alpha: float) -> None:
    """Uneven classes; so many rows that none runs out, which leaves clients independent."""
    n, clients = 20, 1500
    frequencies = np.array([0.5, 0.3, 0.2])
    labels = torch.from_numpy(np.repeat([0, 1, 2], (frequencies * 100_000).astype(int)))
    counts = counts_of(dirichlet(labelled(labels), clients, alpha, seed=3, examples=n), labels)
    for count, p in zip(counts.T, frequencies, strict=True):
        law = stats.betabinom(n, 3 * alpha * p, 3 * alpha * (1 - p)).pmf(np.arange(n + 1))
        observed = np.bincount(count, minlength=n + 1)
        many = law * clients >= 5
        pooled = np.append(observed[many], observed[~many].sum()), np.append(law[many], law[~many].sum()) * clients
        kept = pooled[1] > 0
        assert stats.chisquare(pooled[0][kept], pooled[1][kept]).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 1e4])
def test_class_shares_are_beta(alpha: float) -> None:
    """Of many examples a client's share of a class is nearly its proportion."""
    fed = dirichlet(balanced(900_000, 3), 300, alpha, seed=1, examples=1000)
    share = counts_of(fed, fed.examples.targets)[:, 0] / 1000  # type: ignore[arg-type]
    sampled = np.random.default_rng(0).binomial(1000, stats.beta(alpha, 2 * alpha).rvs(20_000, random_state=1)) / 1000
    assert stats.ks_2samp(share, sampled).pvalue > SIGNIFICANCE


def test_small_alpha_means_few_classes() -> None:
    data = balanced(60_000, 10)
    classes = [
        np.count_nonzero(counts_of(dirichlet(data, 50, a), data.labels), axis=1).mean() for a in (1e-5, 0.1, 1e3)
    ]
    assert classes[0] < 2.5  # at first one each; the last clients have what is left
    assert classes[0] < classes[1] < classes[2] == 10


@pytest.mark.parametrize(("examples", "sizes"), [(None, 66), (7, 7)])
def test_sizes_are_exact_and_nothing_is_dealt_twice(examples: int | None, sizes: int) -> None:
    fed = dirichlet(balanced(1000, 10), 15, 0.1, examples=examples)
    assert fed.sizes.tolist() == [sizes] * 15
    assert_nothing_twice(fed)


def test_sizes_in_a_range_are_uniform() -> None:
    fed = dirichlet(balanced(30_000, 4), 1500, 1.0, examples=(11, 20))
    observed = np.bincount(fed.sizes.numpy(), minlength=21)[11:]
    assert observed.sum() == 1500
    assert stats.chisquare(observed).pvalue > SIGNIFICANCE
    assert_nothing_twice(fed)


@pytest.mark.parametrize("alpha", [1e-6, 0.1, 10.0])
def test_exhausted_classes_are_dropped(alpha: float) -> None:
    """Every row is dealt, although the classes are uneven and clients want other proportions."""
    labels = torch.from_numpy(np.repeat([0, 1, 3], [10, 200, 90]))  # and a class that does not occur
    fed = dirichlet(labelled(labels), 30, alpha, examples=10)
    assert fed.rows.sort().values.tolist() == list(range(300))


def test_a_class_is_dropped_with_its_last_row_and_the_others_keep_their_ratio() -> None:
    """Client 0 wants three classes evenly; one has a single row, so that the rest of its draws is of the other two."""
    labels = torch.from_numpy(np.repeat([0, 1, 2], [1, 40_000, 20_000]))
    fed = dirichlet(labelled(labels), 1, 1e9, examples=3000)
    counts = counts_of(fed, labels)[0]
    assert counts[0] <= 1
    assert stats.binomtest(int(counts[1]), int(counts[1:].sum()), 2 / 3).pvalue > SIGNIFICANCE


def test_a_class_is_gone_with_its_last_row_even_if_no_later_draw_wants_it() -> None:
    pile = partition._Pile(np.array([0, 1, 1, 1, 1]), seed=0)
    assert pile.lasts_for(np.array([1, 0, 1])) == 2  # the draws after it are of classes 1 alone: read again
    assert pile.lasts_for(np.array([1, 1, 1])) == 3
    assert pile.lasts_for(np.array([1, 0, 1, 0])) == 2


def test_rows_of_a_class_are_dealt_in_a_random_order() -> None:
    fed = dirichlet(balanced(4000, 2), 1, 1.0, examples=1000)
    rows = fed.rows.numpy()
    assert stats.kstest(rows / 4000, "uniform").pvalue > SIGNIFICANCE
    assert abs(stats.spearmanr(np.arange(1000), rows).statistic) < 0.15


@pytest.mark.parametrize("deal", [dirichlet, lambda data, clients, seed: pachinko(data, clients, 20, seed=seed), iid])
def test_same_seed_same_bits(deal: Any) -> None:
    data = two_levels(4000, 4, 5)
    first, again, other = (deal(data, clients=30, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.rows, again.rows)
    assert first.fingerprint() == again.fingerprint()
    assert not torch.equal(first.rows, other.rows)


def test_same_bits_on_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    data = two_levels(2000, 4, 5)
    here = [dirichlet(data, 10, 0.1).rows, pachinko(data, 10, 150).rows, iid(data, 10).rows]
    monkeypatch.setattr(sampling, "uniform", functools.partial(kernels.uniform, backend="reference"))
    monkeypatch.setattr(partition, "permutation", functools.partial(kernels.permutation, backend="reference"))
    there = [dirichlet(data, 10, 0.1).rows, pachinko(data, 10, 150).rows, iid(data, 10).rows]
    assert all(torch.equal(one, two) for one, two in zip(here, there, strict=True))


def literal(labels: Tensor, sizes: list[int], seed: int, share_of: Callable[[int, int, set[int]], float]) -> list[int]:
    """The rows dealt one draw at a time, as the text says it: `share_of(client, label, labels left)`."""
    stream = functools.partial(Stream, seed, Purpose.PARTITION)
    queues: dict[int, list[int]] = {}
    for row in kernels.permutation(len(labels), stream(round=partition._ORDER)).tolist():
        queues.setdefault(int(labels[row]), []).append(row)
    dealt = []
    for client, size in enumerate(sizes):
        for number in sampling.uniforms(size, stream(round=partition._DRAWS, client=client)):
            left = {label for label, queue in queues.items() if queue}
            chances = {label: share_of(client, label, left) for label in sorted(left)}
            remaining = number * sum(chances.values())
            below = np.cumsum(list(chances.values()))
            chosen = next(label for label, end in zip(chances, below, strict=True) if remaining < end)
            dealt.append(queues[chosen].pop(0))
    return dealt


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("alpha", [0.001, 0.3, 3.0])
def test_dirichlet_is_the_literal_one(alpha: float, seed: int) -> None:
    """Small classes, so that they run out in the middle of clients, or with the last row that a client wanted."""
    labels = torch.from_numpy(np.repeat([0, 1, 2, 3], [30, 50, 7, 33]))
    prior = np.array([30, 50, 7, 33]) / 120 * 4
    logs = sampling.log_gammas(alpha * prior, Stream(seed, Purpose.PARTITION, partition._CLASSES), torch.arange(12))

    def share(client: int, label: int, left: set[int]) -> float:
        return math.exp(logs[client, label] - max(logs[client, other] for other in left))

    fed = dirichlet(labelled(labels), 12, alpha, seed=seed)
    assert fed.rows.tolist() == literal(labels, [10] * 12, seed, share)


def test_a_printed_prior_is_alpha_divided_by_the_classes() -> None:
    """Dir(alpha * p) with frequencies p: shares of the printed form are beta(alpha p_c, alpha (1 - p_c))."""
    labels = torch.from_numpy(np.repeat([0, 1, 2], [400_000, 100_000, 100_000]))
    fed = dirichlet(labelled(labels), 300, 3.0, examples=2000, prior="printed")
    share = counts_of(fed, labels)[:100, 0] / 2000  # the first ones: nothing has run out yet
    assert stats.kstest(share, stats.beta(3 * 4 / 6, 3 * 2 / 6).cdf).pvalue > SIGNIFICANCE
    assert stats.kstest(share, stats.beta(9 * 4 / 6, 9 * 2 / 6).cdf).pvalue < SIGNIFICANCE
    scaled = dirichlet(labelled(labels), 300, 1.0, examples=2000)
    assert torch.equal(scaled.rows, fed.rows)
    with pytest.raises(ValueError, match="prior: must be 'scaled' or 'printed', got 'flat'"):
        dirichlet(labelled(labels), 300, prior="flat")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_with_replacement_is_the_literal_one(seed: int) -> None:
    """More examples than there are rows: a draw decides the class by shares that never change, another the row."""
    labels = torch.from_numpy(np.repeat([0, 1, 2, 3], [30, 50, 7, 33]))
    stream = functools.partial(Stream, seed, Purpose.PARTITION)
    prior = np.array([30, 50, 7, 33]) / 120 * 4
    logs = sampling.log_gammas(0.4 * prior, stream(partition._CLASSES), torch.arange(12))
    order = kernels.permutation(120, stream(partition._ORDER)).tolist()
    wanted = []
    for client in range(12):
        chances = [math.exp(number) for number in logs[client] - max(logs[client])]
        first = sampling.uniforms(40, stream(partition._DRAWS, client=client))
        second = sampling.uniforms(40, stream(partition._ROWS, client=client))
        for of_class, of_row in zip(first, second, strict=True):
            remaining = of_class * sum(chances)
            chosen = next(label for label in range(4) if remaining < sum(chances[: label + 1]))
            rows = [row for row in order if labels[row] == chosen]
            wanted.append(rows[int(of_row * len(rows))])
    fed = dirichlet(labelled(labels), 12, 0.4, seed=seed, examples=40, replacement=True)
    assert fed.rows.tolist() == wanted


def literal_by_label(
    labels: Tensor, clients: int, alpha: float, seed: int, least: int, balance: bool
) -> list[list[int]]:
    """As NIID-Bench's own code goes about it, with other random numbers."""
    stream = functools.partial(Stream, seed, Purpose.PARTITION)
    order = kernels.permutation(len(labels), stream(partition._ORDER)).tolist()
    attempt = 0
    while True:
        kinds = int(labels.max()) + 1
        logs = sampling.log_gammas(np.full(clients, alpha), stream(partition._BY_LABEL + attempt), torch.arange(kinds))
        dealt: list[list[int]] = [[] for _ in range(clients)]
        for label in range(kinds):
            rows = [row for row in order if labels[row] == label]
            weights = np.exp(logs[label] - logs[label].max())
            if balance:
                weights = weights * [len(own) < len(labels) / clients for own in dealt]
            cuts = (np.cumsum(weights / weights.sum()) * len(rows)).astype(int)[:-1]
            for own, part in zip(dealt, np.split(np.array(rows), cuts), strict=True):
                own += part.tolist()
        if min(map(len, dealt)) >= least:
            return dealt
        attempt += 1


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_dirichlet_by_label_is_the_literal_one(seed: int, balance: bool) -> None:
    labels = torch.from_numpy(np.repeat([0, 1, 2, 3], [130, 250, 37, 133]))
    fed = dirichlet_by_label(labelled(labels), 8, 0.4, seed=seed, min_examples=20, balance=balance)
    found = [fed.rows_of(client).tolist() for client in range(8)]
    assert found == literal_by_label(labels, 8, 0.4, seed, 20, balance)
    assert min(map(len, found)) >= 20
    assert sorted(row for own in found for row in own) == list(range(550))


def test_a_class_is_shared_by_clients_as_a_dirichlet_variate() -> None:
    labels = torch.zeros(200_000, dtype=torch.int64)
    shares = [dirichlet_by_label(labelled(labels), 6, 0.3, seed=seed, min_examples=0).sizes[2] for seed in range(400)]
    assert stats.kstest(np.array(shares) / 200_000, stats.beta(0.3, 1.5).cdf).pvalue > SIGNIFICANCE


def test_enough_for_everybody_may_be_too_much_to_ask() -> None:
    with pytest.raises(ValueError, match="min_examples: made up has 100 rows, too few for 10 clients with 11 each"):
        dirichlet_by_label(balanced(100, 2), 10, min_examples=11)
    with pytest.raises(ValueError, match=r"min_examples: in 1000 draws of Dir\(0.01\) some of 10 clients always had"):
        dirichlet_by_label(balanced(100, 2), 10, 0.01, min_examples=9)


def test_pachinko_is_the_literal_one() -> None:
    data = two_levels(120, 3, 2)
    streams = [Stream(9, Purpose.PARTITION, what) for what in (partition._CLASSES, partition._LEAVES)]
    roots = np.exp(sampling.log_gammas(np.full(3, 0.2), streams[0], torch.arange(12)))
    leaves = np.exp(sampling.log_gammas(np.full(6, 3.0), streams[1], torch.arange(12)))

    def share(client: int, label: int, left: set[int]) -> float:
        coarse = {other // 2 for other in left}
        siblings = [other for other in left if other // 2 == label // 2]
        of_root = roots[client, label // 2] / sum(roots[client, other] for other in coarse)
        return float(of_root * leaves[client, label] / sum(leaves[client, other] for other in siblings))

    fed = pachinko(data, 12, 10, alpha=0.2, beta=3.0, seed=9)
    assert fed.rows.tolist() == literal(data.labels, [10] * 12, 9, share)


# ---- Pachinko -------------------------------------------------------------------------------------------------------


def test_coarse_counts_are_beta_binomial_and_fine_ones_too() -> None:
    n, clients, coarse, fine = 20, 1000, 4, 3
    data = two_levels(240_000, coarse, fine)
    counts = counts_of(pachinko(data, clients, n, alpha=0.2, beta=2.0, seed=5), data.labels)
    by_coarse = counts.reshape(clients, coarse, fine)
    law = stats.betabinom(n, 0.2, 0.2 * (coarse - 1)).pmf(np.arange(n + 1)) * clients
    observed = np.bincount(by_coarse.sum(axis=2)[:, 1], minlength=n + 1)
    assert law.min() > 5
    assert stats.chisquare(observed, law * observed.sum() / law.sum()).pvalue > SIGNIFICANCE
    loyal = by_coarse.sum(axis=2) == n  # all of its examples have one coarse label
    own = by_coarse[loyal][:, 0]
    law = stats.betabinom(n, 2.0, 4.0).pmf(np.arange(n + 1)) * len(own)
    few = law < 5
    observed = np.bincount(own, minlength=n + 1)
    pooled = np.append(observed[~few], observed[few].sum()), np.append(law[~few], law[few].sum())
    assert stats.chisquare(*pooled).pvalue > SIGNIFICANCE


def test_pachinko_deals_every_row_of_cifar100s_shape() -> None:
    data = two_levels(50_000, 20, 5)
    fed = pachinko(data)
    assert fed.sizes.tolist() == [100] * 500
    assert_nothing_twice(fed)
    kinds = np.count_nonzero(counts_of(fed, data.labels), axis=1)
    assert 18 < np.median(kinds) < 30  # AFO, figure 14: most clients have 20 to 30 of the labels, some more than 40
    assert kinds.max() > 35


def test_exhausted_leaves_leave_their_parent_its_share() -> None:
    """Of two coarse labels one loses two of its three fine ones at once: it still has half of the draws."""
    fine = torch.from_numpy(np.repeat([0, 1, 2, 3], [1, 1, 5000, 10_000]))
    fed = pachinko(labelled(fine, coarse=(fine == 3).long()), 1, 4000, alpha=1e9, beta=1e9)
    counts = counts_of(fed, fine)[0]
    assert counts[0] <= 1
    assert counts[1] <= 1
    assert stats.binomtest(int(counts[3]), 4000, 0.5).pvalue > SIGNIFICANCE


# ---- natural, iid ---------------------------------------------------------------------------------------------------


def keyed() -> Dataset:
    test = Examples(torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64))
    return labelled(
        torch.zeros(7, dtype=torch.int64),
        test=test,
        client=torch.tensor([2, 0, 2, 3, 0, 2, 4]),
        test_client=torch.tensor([3, 1, 2, 0, 2]),
        client_names=("ann", "bob", "cid", "dot", "eve"),
    )


def test_natural_clients_keep_their_rows() -> None:
    fed = natural(keyed())
    assert fed.client_names == ("ann", "cid", "dot", "eve")  # bob has no training row
    assert [fed.rows_of(i).tolist() for i in range(4)] == [[1, 4], [0, 2, 5], [3], [6]]
    tests = fed.visit_tests(torch.arange(4))
    assert tests is not None
    assert tests.rows.tolist() == [3, 2, 4, 0]
    assert tests.offsets.tolist() == [0, 1, 3, 4, 4]
    assert fed.test is not None
    assert len(fed.test) == 5


def test_natural_drops_small_clients() -> None:
    fed = natural(keyed(), min_examples=3)
    assert fed.client_names == ("cid",)
    assert fed.rows.tolist() == [0, 2, 5]
    assert fed.test_rows is not None
    assert fed.test_rows.tolist() == [2, 4]


def test_natural_without_names_or_test_rows() -> None:
    fed = natural(labelled(torch.zeros(3, dtype=torch.int64), client=torch.tensor([5, 1, 5])))
    assert len(fed) == 2
    assert fed.rows.tolist() == [1, 0, 2]
    assert fed.client_names == ()
    assert fed.test_rows is None


def test_iid_deals_every_row_evenly() -> None:
    data = balanced(1003, 5)
    fed = iid(data, 10)
    assert sorted(set(fed.sizes.tolist())) == [100, 101]
    assert fed.rows.sort().values.tolist() == list(range(1003))
    assert stats.chisquare(counts_of(fed, data.labels)[0]).pvalue > SIGNIFICANCE


# ---- recipes and bad input ------------------------------------------------------------------------------------------


def test_partitions_remember_how_they_were_made() -> None:
    recipe = iid(balanced(10, 2), 2).recipe
    assert recipe is None  # the data itself has none
    fed = dirichlet(data_with_recipe(), 5, 0.5, examples=(1, 3))
    assert fed.recipe is not None
    assert fed.recipe.function == "data.dirichlet"
    assert fed.recipe.json()["arguments"]["examples"] == [1, 3]


def data_with_recipe() -> Dataset:
    from fastfed.saved.recipe import Recipe

    return balanced(100, 5, recipe=Recipe("data.digits", {}))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("clients", lambda: dirichlet(balanced(10, 2), 0)),
        ("clients", lambda: dirichlet(balanced(10, 2), 11)),
        ("clients", lambda: dirichlet(balanced(10, 2), 2.5)),  # type: ignore[arg-type]
        ("clients", lambda: iid(balanced(10, 2), 11)),
        ("alpha", lambda: dirichlet(balanced(10, 2), 2, 0.0)),
        ("alpha", lambda: dirichlet(balanced(10, 2), 2, float("inf"))),
        ("alpha", lambda: pachinko(two_levels(100, 2, 2), 2, 5, alpha=-1.0)),
        ("beta", lambda: pachinko(two_levels(100, 2, 2), 2, 5, beta=0.0)),
        ("examples", lambda: dirichlet(balanced(10, 2), 2, examples=6)),
        ("examples", lambda: dirichlet(balanced(10, 2), 2, examples=0)),
        ("examples", lambda: dirichlet(balanced(10, 2), 5, examples=(3, 4))),
        (r"examples \(highest\)", lambda: dirichlet(balanced(10, 2), 2, examples=(3, 2))),
        ("examples", lambda: dirichlet(balanced(10, 2), 2, examples=(3, 4, 5))),  # type: ignore[arg-type]
        ("data", lambda: pachinko(balanced(100, 4), 2, 5)),
        ("data", lambda: natural(balanced(100, 4))),
        ("data", lambda: dirichlet(labelled(torch.tensor([0, -1])), 1)),
        ("coarse", lambda: pachinko(labelled(torch.tensor([0, 1, 0]), coarse=torch.tensor([0, 1, 1])), 1, 1)),
        ("min_examples", lambda: natural(keyed(), min_examples=4)),
        ("min_examples", lambda: natural(keyed(), min_examples=0)),
        ("seed", lambda: iid(balanced(10, 2), 2, seed=-1)),
        ("made up", lambda: dirichlet(Dataset("made up", Examples(torch.zeros(4, 1), torch.zeros(4, 1))), 2)),
    ],
)
def test_bad_input_is_named(name: str, make: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
        make()


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_partition_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "writers.npz"
    for data, fed in ((balanced(100, 5), None), (keyed(), natural(keyed()))):
        fed = fed or dirichlet(data, 7)
        save_partition(fed, path)
        again = load_partition(data, path)
        for name in ("rows", "offsets", "test_rows", "test_offsets"):
            ours, theirs = getattr(fed, name), getattr(again, name)
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)
        assert again.client_names == fed.client_names
        assert again.fingerprint() == fed.fingerprint()
    assert [file.name for file in path.parent.iterdir()] == ["writers.npz"]


@pytest.mark.parametrize("other", [balanced(101, 5), labelled(torch.arange(100) % 5 + 1), keyed()])
def test_other_data_is_refused(tmp_path: Path, other: Dataset) -> None:
    save_partition(dirichlet(balanced(100, 5), 7), tmp_path / "p.npz")
    with pytest.raises(DataError, match=r"p\.npz: it deals"):
        load_partition(other, tmp_path / "p.npz")


def test_other_tests_are_refused(tmp_path: Path) -> None:
    data = keyed()
    save_partition(natural(data), tmp_path / "p.npz")
    shorter = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="5 test examples"):
        load_partition(Dataset("made up", data.train, shorter), tmp_path / "p.npz")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data, path = balanced(100, 5), tmp_path / "p.npz"
    with pytest.raises(DataError, match="no such file"):
        load_partition(data, path)
    save_partition(dirichlet(data, 7), path)
    whole = path.read_bytes()
    for contents in (b"", b"nonsense", whole[: len(whole) // 2]):
        path.write_bytes(contents)
        with pytest.raises(DataError, match=r"p\.npz: cannot be read"):
            load_partition(data, path)
    np.savez(path, rows=np.arange(3))
    with pytest.raises(DataError, match=r"p\.npz: cannot be read"):
        load_partition(data, path)
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(DataError, match=r"array\.npy: cannot be read"):
        load_partition(data, tmp_path / "array.npy")


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, path = balanced(100, 5), tmp_path / "p.npz"
    fed = dirichlet(data, 7)
    save_partition(fed, path)

    def fail(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save_partition(iid(data, 3), path)
    assert torch.equal(load_partition(data, path).rows, fed.rows)
    assert len(list(tmp_path.iterdir())) == 1
