"""Activations: near the true functions everywhere, and the same bits from numpy's operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle_cells
from wts.numerics.activations import exponential, rounded, sigmoid, silu, tanh

INF = math.inf
NAN = math.nan
UNIT = 2.0**-23
LEAST_NORMAL = 2.0**-126
# Below this sigmoid and SiLU are what they are there.
NOTHING_BELOW = -80.0

Function = Callable[[torch.Tensor], torch.Tensor]

EVERY_BF16 = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16).float()


def true_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.exp(-torch.nn.functional.softplus(-x))


FUNCTIONS: dict[str, tuple[Function, Function, float]] = {
    "exponential": (exponential, torch.exp, 1.0),
    "sigmoid": (sigmoid, lambda x: 1 / (1 + torch.exp(-x)), 2.0),
    "silu": (silu, true_silu, 2.0),
    "tanh": (tanh, torch.tanh, 3.0),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def many_inputs() -> torch.Tensor:
    """Every bf16 number, and a million fp32 numbers of all sizes that matter."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(200_000, generator=generator) * size for size in (1e-3, 0.3, 1, 8, 50)]
    return torch.cat([EVERY_BF16, *drawn])


@each_function
def test_relative_error_is_below_the_stated_one(name: str) -> None:
    function, true, units = FUNCTIONS[name]
    x = many_inputs()
    x = x[x.isfinite()]
    found, wanted = function(x).double(), true(x.double())
    normal = (wanted.abs() >= LEAST_NORMAL) & (wanted.abs() <= torch.finfo(torch.float32).max)
    if name in ("sigmoid", "silu"):
        normal &= x > NOTHING_BELOW
    off = ((found - wanted).abs() / wanted.abs())[normal]
    assert off.max() <= units * UNIT
    assert off.max() >= 0.2 * units * UNIT, "a bound that is far off says little"
    assert int(normal.sum()) > 1_000_000


@pytest.mark.parametrize("name", ["sigmoid", "silu", "tanh"])
def test_absolute_error_is_small_where_the_result_is_tiny(name: str) -> None:
    function, true, _ = FUNCTIONS[name]
    x = EVERY_BF16[EVERY_BF16.isfinite()]
    found, wanted = function(x).double(), true(x.double())
    tiny = wanted.abs() < LEAST_NORMAL
    if name != "tanh":
        tiny |= x < NOTHING_BELOW
    assert int(tiny.sum()) > 100
    limit = {"sigmoid": 2e-35, "silu": 2e-33, "tanh": 3e-37}[name]
    assert bool(((found - wanted).abs()[tiny] < limit).all())


@pytest.mark.parametrize(
    ("function", "x", "wanted"),
    [
        (
            exponential,
            [-INF, -200.0, -3e38, 0.0, -0.0, 200.0, 3e38, INF],
            [0, 0, 0, 1, 1, *[INF] * 3],
        ),
        (
            sigmoid,
            [-INF, -3e38, -200.0, -0.0, 0.0, 17.5, 3e38, INF],
            [*[1.804851387e-35] * 3, 0.5, 0.5, 1, 1, 1],
        ),
        (
            silu,
            [-3e38, -200.0, -0.0, 0.0, 200.0, 3e38, INF],
            [*[-1.443881109e-33] * 2, -0.0, 0.0, 200.0, 3e38, INF],
        ),
        (tanh, [-INF, -3e38, -20.0, -0.0, 0.0, 20.0, 3e38, INF], [-1, -1, -1, -0.0, 0.0, 1, 1, 1]),
    ],
)
def test_at_the_edges(function: Function, x: list[float], wanted: list[float]) -> None:
    found = function(torch.tensor(x))
    assert found.dtype == torch.float32
    assert torch.equal(found.view(torch.int32), torch.tensor(wanted).float().view(torch.int32))


@each_function
def test_nan_stays_nan(name: str) -> None:
    function = FUNCTIONS[name][0]
    assert bool(function(torch.tensor([NAN, -NAN])).isnan().all())
    assert function(torch.tensor([NAN, 0.0, NAN])).isnan().tolist() == [True, False, True]


def test_silu_is_nan_where_the_product_with_its_sigmoid_is() -> None:
    assert silu(torch.tensor([-INF])).isnan().all()
    assert torch.nn.functional.silu(torch.tensor([-INF])).isnan().all()


def test_tanh_is_odd_and_keeps_tiny_numbers() -> None:
    x = EVERY_BF16[EVERY_BF16.isfinite()]
    assert torch.equal(tanh(-x), -tanh(x))
    tiny = torch.tensor([1e-20, -1e-30, 2.0**-149])
    assert torch.equal(tanh(tiny), tiny)


@pytest.mark.parametrize("name", ["exponential", "sigmoid", "tanh"])
def test_never_falls_over_every_bf16_number(name: str) -> None:
    x = EVERY_BF16[EVERY_BF16.isfinite()].sort().values
    found = rounded(FUNCTIONS[name][0](x))
    assert bool((found[1:] >= found[:-1]).all())


@each_function
def test_nearly_every_bf16_result_is_the_true_one(name: str) -> None:
    """Another one only where the true result lies within the error of a boundary of bf16."""
    function, true, units = FUNCTIONS[name]
    x = EVERY_BF16[EVERY_BF16.isfinite() & (EVERY_BF16 > NOTHING_BELOW)]
    x = x[true(x.double()).isfinite()]
    found, exact = rounded(function(x)), true(x.double())
    low, high = exact - exact.abs() * units * UNIT, exact + exact.abs() * units * UNIT
    assert bool((found >= rounded(low.float())).all() and (found <= rounded(high.float())).all())
    assert (found == rounded(exact.float())).float().mean() > 0.999


@each_function
def test_numpy_gives_the_same_bits(name: str) -> None:
    x = many_inputs()
    wanted = getattr(oracle_cells, name)(x.numpy())
    found = FUNCTIONS[name][0](x).numpy()
    nan = np.isnan(wanted)
    assert np.array_equal(nan, np.isnan(found))
    assert np.array_equal(wanted[~nan].view(np.int32), found[~nan].view(np.int32))


@each_function
@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.integers(1, 40))
def test_an_element_does_not_depend_on_the_others(name: str, values: list[float], at: int) -> None:
    function = FUNCTIONS[name][0]
    x = torch.tensor(values)
    index = at % len(values)
    together, alone = function(x)[index], function(x[index : index + 1])[0]
    assert torch.equal(together.view(torch.int32), alone.view(torch.int32)) or together.isnan()


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_rounding_is_to_the_nearest_bf16_number(values: list[float]) -> None:
    found = rounded(torch.tensor(values)).numpy()
    wanted = oracle_cells.bf16(np.array(values, dtype=np.float32))
    assert np.array_equal(found, wanted, equal_nan=True)
