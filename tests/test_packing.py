"""Packing: any module's trainable parameters in one aligned vector, by name and without copies."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fastfed as ff

BORDER = 64  # bytes


class Nested(nn.Module):
    """Modules in lists and dicts, parameters of its own, a scalar among them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 1, bias=False), "b": nn.Linear(3, 2)})
        self.table = nn.ParameterList([nn.Parameter(torch.randn(2, 3)) for _ in range(2)])


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(7, 3),
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.GroupNorm(1, 5), nn.ReLU(), nn.Conv1d(5, 2, 1)),
    "lstm": lambda: nn.LSTM(5, 7, num_layers=2, bidirectional=True),
    "embedding": lambda: nn.Embedding(11, 3, padding_idx=0),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=17, batch_first=True),
    "nested": Nested,
    "stateless norms": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False), nn.InstanceNorm2d(2, affine=True)
    ),
    "float16": lambda: nn.Linear(5, 3).half(),
    "bfloat16": lambda: nn.Linear(5, 3).bfloat16(),
    "float64": lambda: nn.Linear(5, 3).double(),
    "mixed": lambda: nn.Sequential(nn.Linear(5, 3).half(), nn.Linear(3, 2), nn.Linear(2, 2).bfloat16()),
}


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[request.param]()


def bits(tensor: Tensor) -> list[int]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def perturbed(module: nn.Module) -> nn.Module:
    """A copy with other numbers in it."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    return other


def names_of(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


# ---- layout ---------------------------------------------------------------------------------------------------------


def test_every_parameter_has_its_place(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    parameters = names_of(module)
    assert [slot.name for slot in packing.slots] == list(parameters)
    assert [slot.shape for slot in packing.slots] == [tuple(p.shape) for p in parameters.values()]
    assert packing.parameters == sum(p.numel() for p in parameters.values())


def test_tensors_start_on_borders_and_do_not_overlap(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    end = 0
    for slot in packing.slots:
        assert slot.offset * packing.dtype.itemsize % BORDER == 0
        assert slot.offset >= end
        end = slot.offset + slot.numel
        assert slot.span == slice(slot.offset, end)
    assert packing.size * packing.dtype.itemsize % BORDER == 0  # rows of a batch are aligned too
    assert 0 <= packing.size - end < BORDER


def test_views_are_aligned_in_memory(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    for x in (packing.zeros(), packing.pack(module)):
        for name, view in packing.views(x).items():
            assert view.data_ptr() % BORDER == 0, name
    for row in packing.zeros(clients=3):
        for name, view in packing.views(row).items():
            assert view.data_ptr() % BORDER == 0, name


def test_views_share_memory_with_the_vector(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    x = packing.zeros()
    views = packing.views(x)
    for number, slot in enumerate(packing.slots, start=1):
        assert views[slot.name].data_ptr() == x.data_ptr() + slot.offset * x.element_size()
        assert views[slot.name].shape == slot.shape
        views[slot.name].fill_(number)
    for number, slot in enumerate(packing.slots, start=1):
        assert (x[slot.span] == number).all()
    assert int((x != 0).sum()) == packing.parameters


def test_views_of_a_batch_have_the_clients_in_front(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    x = packing.zeros(clients=3)
    assert x.shape == (3, packing.size)
    x += torch.arange(3)[:, None]
    for slot in packing.slots:
        view = packing.views(x)[slot.name]
        assert view.shape == (3, *slot.shape)
        for client in range(3):
            assert (view[client] == client).all()
        view[1].fill_(-1)
        assert (x[1, slot.span] == -1).all()


def test_views_carry_gradients_to_the_vector() -> None:
    packing = ff.Packing.of(nn.Linear(2, 3))
    x = packing.zeros().requires_grad_()
    (packing.views(x)["weight"] * 2).sum().backward()
    wanted = packing.zeros()
    packing.views(wanted)["weight"].fill_(2.0)
    assert torch.equal(x.grad, wanted)


# ---- round trips ----------------------------------------------------------------------------------------------------


def test_round_trip_is_exact(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    x = packing.pack(module)
    other = perturbed(module)
    packing.unpack(x, other)
    for (name, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
        assert bits(p) == bits(q), name
        assert p.dtype == q.dtype
    assert bits(packing.pack(other)) == bits(x)


def test_packed_numbers_are_the_parameters(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    views = packing.views(packing.pack(module))
    for name, p in names_of(module).items():
        assert torch.equal(views[name], p.detach().to(packing.dtype)), name


def test_pack_does_not_tie_the_vector_to_the_module(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    x = packing.pack(module)
    assert not x.requires_grad
    before = packing.pack(module)
    x.fill_(3.0)
    assert bits(packing.pack(module)) == bits(before)


def test_pack_into_a_given_vector_leaves_zeros_in_the_gaps(module: nn.Module) -> None:
    """Norms run over the whole vector: rubbish in a gap would count."""
    packing = ff.Packing.of(module)
    out = torch.full((packing.size,), torch.nan, dtype=packing.dtype)
    assert packing.pack(module, out) is out
    assert bits(out) == bits(packing.pack(module))
    out.fill_(torch.nan)
    assert packing.pack_grad(module, out) is out
    assert not out.any()


def test_pack_grad(module: nn.Module) -> None:
    packing = ff.Packing.of(module)
    assert not packing.pack_grad(module).any()
    parameters = names_of(module)
    for number, p in enumerate(parameters.values(), start=1):
        if number % 2:
            p.grad = torch.full_like(p, number)
    views = packing.views(packing.pack_grad(module))
    for number, name in enumerate(parameters, start=1):
        assert (views[name] == (number if number % 2 else 0)).all(), name


def test_dtype_of_the_vector() -> None:
    dtypes = {name: ff.Packing.of(make()).dtype for name, make in MODULES.items()}
    assert dtypes.pop("float64") == torch.float64
    assert set(dtypes.values()) == {torch.float32}
    wide = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2).double())
    assert ff.Packing.of(wide).dtype == torch.float64


def test_strided_parameters_are_packed_in_reading_order() -> None:
    module = nn.Linear(3, 4, bias=False)
    module.weight = nn.Parameter(torch.arange(12.0).view(3, 4).t())
    channels_last = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    for strided in (module, channels_last):
        assert not strided.weight.is_contiguous()
        packing = ff.Packing.of(strided)
        assert torch.equal(packing.views(packing.pack(strided))["weight"], strided.weight)
        other = perturbed(strided)
        packing.unpack(packing.pack(strided), other)
        assert torch.equal(other.weight, strided.weight)


def test_a_trained_module_computes_the_same_from_its_vector() -> None:
    torch.manual_seed(1)
    module = MODULES["transformer"]()
    packing = ff.Packing.of(module)
    batch = torch.randn(2, 5, 8)
    module.eval()
    other = perturbed(module)
    packing.unpack(packing.pack(module), other)
    assert torch.equal(module(batch), other(batch))


# ---- tied, frozen, buffers ------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A language model's usual knot: the output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.hidden = nn.Linear(5, 5)
        self.output = nn.Linear(5, 11)
        self.output.weight = self.embedding.weight


def test_tied_parameters_are_packed_once() -> None:
    module = Tied()
    packing = ff.Packing.of(module)
    assert [slot.name for slot in packing.slots] == ["embedding.weight", "hidden.weight", "hidden.bias", "output.bias"]
    assert packing.aliases == {"output.weight": "embedding.weight"}
    assert packing.parameters == 11 * 5 + 5 * 5 + 5 + 11
    x = packing.pack(module)
    views = packing.views(x)
    assert views["output.weight"].data_ptr() == views["embedding.weight"].data_ptr()
    other = perturbed(module)
    packing.unpack(x, other)
    assert torch.equal(other.output.weight, module.embedding.weight)
    assert other.output.weight is other.embedding.weight


def test_one_module_under_two_names_is_packed_once() -> None:
    shared = nn.Linear(3, 3)
    packing = ff.Packing.of(nn.Sequential(shared, nn.ReLU(), shared))
    assert [slot.name for slot in packing.slots] == ["0.weight", "0.bias"]
    assert packing.aliases == {"2.weight": "0.weight", "2.bias": "0.bias"}


def test_frozen_parameters_are_left_out_and_reported() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    packing = ff.Packing.of(module)
    assert [slot.name for slot in packing.slots] == ["0.bias", "1.weight", "1.bias"]
    assert packing.frozen == {"0.weight": (4, 3)}
    x = packing.pack(module)
    assert "0.weight" not in packing.views(x)
    other = perturbed(module)
    kept = other[0].weight.clone()
    packing.unpack(x, other)
    assert torch.equal(other[0].weight, kept)
    assert torch.equal(other[1].weight, module[1].weight)


def test_buffers_are_reported() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.ones(2, 3))
    module.register_buffer("scratch", torch.zeros(()), persistent=False)
    packing = ff.Packing.of(module)
    assert packing.buffers == {"mask": (2, 3), "scratch": ()}
    assert set(packing.views(packing.pack(module))) == {"weight", "bias"}


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm2d(3),
        nn.BatchNorm3d(3),
        nn.SyncBatchNorm(3),
        nn.BatchNorm2d(3, affine=False),
        nn.InstanceNorm2d(3, track_running_stats=True),
        nn.LazyBatchNorm2d(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_running_statistics_are_refused(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"norm": layer}))
    with pytest.raises(ValueError, match=r"^module: .*'1\.norm'.*" + type(layer).__name__ + r".*[Gg]roup ?[Nn]orm"):
        ff.Packing.of(module)


def test_running_statistics_of_the_module_itself() -> None:
    with pytest.raises(ValueError, match=r"^module: .*BatchNorm1d.*GroupNorm"):
        ff.Packing.of(nn.BatchNorm1d(3))


def test_lazy_modules_are_refused_until_they_have_shapes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that lazy modules may change
        module = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"^module: parameter '0\.weight' has no shape yet"):
        ff.Packing.of(module)
    module(torch.zeros(2, 5))
    assert ff.Packing.of(module).slots[0].shape == (3, 5)


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)], ids=["none", "all frozen"])
def test_nothing_to_train(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"^module: has no trainable parameter"):
        ff.Packing.of(module)


def test_complex_parameters_are_refused() -> None:
    module = nn.Module()
    module.spectrum = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"^module: parameter 'spectrum' is torch\.complex64"):
        ff.Packing.of(module)


@pytest.mark.parametrize("shape", [(), (31,), (33,), (2, 31), (2, 2, 32)], ids=str)
def test_vectors_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    module = nn.Linear(7, 2)
    packing = ff.Packing.of(module)
    assert packing.size == 32
    before = packing.pack(module)
    x = torch.ones(shape)
    for use in (packing.views, lambda x: packing.unpack(x, module), lambda x: packing.pack(module, x)):
        with pytest.raises(ValueError, match=r"^(x|out): must have shape \(32,\)"):
            use(x)
    assert bits(packing.pack(module)) == bits(before)
    assert (x == 1).all()


def test_a_batch_is_no_vector() -> None:
    module = nn.Linear(7, 2)
    packing = ff.Packing.of(module)
    with pytest.raises(ValueError, match=r"^x: must have shape \(32,\), got \(2, 32\)"):
        packing.unpack(packing.zeros(2), module)


def test_no_tensor_at_all() -> None:
    packing = ff.Packing.of(nn.Linear(7, 2))
    with pytest.raises(TypeError, match=r"^x: must be a torch\.Tensor, got list"):
        packing.views([0.0] * 32)


@pytest.mark.parametrize(
    "other",
    [nn.Linear(2, 7), nn.Linear(7, 2, bias=False), nn.Sequential(nn.Linear(7, 2))],
    ids=["shape", "missing", "names"],
)
def test_another_module_is_refused(other: nn.Module) -> None:
    module = nn.Linear(7, 2)
    packing = ff.Packing.of(module)
    before = [p.clone() for p in other.parameters()]
    for use in (packing.pack, packing.pack_grad, lambda m: packing.unpack(packing.zeros(), m)):
        with pytest.raises(ValueError, match=r"^module: parameter '(weight|bias)' should have shape"):
            use(other)
    assert all(torch.equal(p, q) for p, q in zip(other.parameters(), before, strict=True))


# ---- without a module -----------------------------------------------------------------------------------------------


def test_packings_are_values() -> None:
    packing, again = ff.Packing.of(nn.Linear(7, 2)), ff.Packing.of(nn.Linear(7, 2))
    assert packing == again
    assert pickle.loads(pickle.dumps(packing)) == packing
    assert packing == ff.Packing.from_shapes({"weight": (2, 7), "bias": (2,)})
    with pytest.raises(AttributeError):
        packing.size = 3


SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=4).map(tuple), min_size=1, max_size=6)


@given(shapes=SHAPES, wide=st.booleans(), clients=st.one_of(st.none(), st.integers(1, 4)))
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
def test_any_shapes(shapes: list[tuple[int, ...]], wide: bool, clients: int | None) -> None:
    dtype = torch.float64 if wide else torch.float32
    packing = ff.Packing.from_shapes({f"t{i}": shape for i, shape in enumerate(shapes)}, dtype=dtype)
    x = packing.zeros(clients)
    lead = () if clients is None else (clients,)
    for number, (name, view) in enumerate(packing.views(x).items()):
        assert view.shape == (*lead, *shapes[number])
        assert view.data_ptr() % BORDER == 0
        assert name == f"t{number}"
        view += number + 1
    # Written once each: no view overlaps another, and every number of the shapes has its place.
    values, counts = x.unique(return_counts=True)
    held = {int(value): int(count) for value, count in zip(values, counts, strict=True)}
    held.pop(0, None)
    sizes = {i + 1: torch.Size(shape).numel() * (clients or 1) for i, shape in enumerate(shapes)}
    assert held == sizes


@given(shapes=SHAPES, seed=st.integers(0, 2**31))
@settings(deadline=None, derandomize=True, database=None, max_examples=40)
def test_any_parameters_survive_the_round_trip(shapes: list[tuple[int, ...]], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    module = nn.ParameterList([nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes])
    packing = ff.Packing.of(module)
    x = packing.pack(module)
    other = perturbed(module)
    packing.unpack(x, other)
    for p, q in zip(module, other, strict=True):
        assert bits(p) == bits(q)


# ---- arrays without a module ----------------------------------------------------------------------------------------


def numpy_arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    shapes = {"w": (3, 5), "b": (5,), "scale": ()}
    return {name: np.asarray(generator.standard_normal(shape), dtype=np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("listed", [False, True], ids=["mapping", "list"])
def test_arrays_make_the_round_trip(listed: bool) -> None:
    named = numpy_arrays()
    arrays = list(named.values()) if listed else named
    packing = ff.Packing.of(arrays)
    assert [slot.name for slot in packing.slots] == (["0", "1", "2"] if listed else ["w", "b", "scale"])
    x = packing.pack(arrays)
    for array, view in zip(named.values(), packing.views(x).values(), strict=True):
        assert np.array_equal(array, view.numpy())
    packing.unpack(x * 2, arrays)
    for array, before in zip(named.values(), numpy_arrays().values(), strict=True):
        assert np.array_equal(array, 2 * before)


def test_arrays_are_packed_as_the_widest_of_them() -> None:
    assert ff.Packing.of([torch.zeros(3, dtype=torch.float16), np.zeros(2, np.float32)]).dtype is torch.float32
    assert ff.Packing.of([torch.zeros(3), np.zeros(2)]).dtype is torch.float64


def test_arrays_that_do_not_fit_are_refused() -> None:
    arrays = numpy_arrays()
    packing = ff.Packing.of(arrays)
    x = packing.pack(arrays)
    with pytest.raises(ValueError, match=r"parameter 'b' should have shape \(5,\), found \(4,\)"):
        packing.pack({**arrays, "b": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="array 'more' has no place in this packing"):
        packing.pack({**arrays, "more": np.zeros(4, np.float32)})
    with pytest.raises(TypeError, match=r"array 'count' is torch.int64; only floating-point arrays can be packed"):
        ff.Packing.of({"count": np.zeros(2, np.int64)})
    with pytest.raises(TypeError, match="array '1': must be a tensor or an array, got list"):
        ff.Packing.of([np.zeros(2), [1.0]])
    with pytest.raises(ValueError, match="has no array to pack"):
        ff.Packing.of([])
    with pytest.raises(TypeError, match=r"must be an nn.Module, a mapping or a list of arrays, got int"):
        ff.Packing.of(3)
    arrays["w"].setflags(write=False)
    with pytest.raises(ValueError, match="array 'w': this numpy array is read-only"):
        packing.unpack(x, arrays)
    assert torch.equal(packing.pack(arrays), x)
