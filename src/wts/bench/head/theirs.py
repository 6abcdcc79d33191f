"""The step-wise paths of a case: which can be had, their calls, and whether they compute the same.

What they compute is compared on first tokens only: two roundings against one move some near-ties,
and a walk that went another way once stays there.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

import torch

from wts.bench.baselines import sglang_steps, torch_steps
from wts.bench.baselines.inputs import WalkInputs
from wts.bench.baselines.sglang_steps import Sglang
from wts.bench.compare import agreement
from wts.bench.head.cases import HeadCase, default_paths
from wts.errors import DeviceError

__all__ = ["AGREEMENT_TOKENS", "agreements", "call", "choose_paths"]

AGREEMENT_TOKENS = 16
"""First tokens that a baseline is compared on, at least."""

# Below this share of equal ones it computes something else: nine in ten agree on random heads.
_LEAST_AGREEMENT = 0.5


def choose_paths(
    wanted: tuple[str, ...] | None, say: Callable[[str], None]
) -> tuple[tuple[str, ...], Sglang | None]:
    """The paths to time, and SGLang if one of them needs it.

    Raises:
        DeviceError: SGLang was asked for by name and cannot be had.
    """
    paths = default_paths() if wanted is None else wanted
    if not any(path.startswith("sglang") for path in paths):
        return paths, None
    say("importing SGLang")
    try:
        return paths, sglang_steps.load_sglang()
    except DeviceError as error:
        if wanted is not None:
            raise
        say(f"paths sglang and sglang_greedy are left out. {error}")
        return tuple(path for path in paths if not path.startswith("sglang")), None


def call(path: str, inputs: WalkInputs, library: Sglang | None) -> Callable[[], torch.Tensor]:
    """A step-wise path of these inputs.

    Args:
        path: of another than ours.
        inputs: of one walk.
        library: SGLang, for its paths.
    """
    if path == "step_torch":
        return torch_steps.step_torch(inputs)
    assert library is not None
    if path == "sglang_greedy":
        return sglang_steps.sglang_greedy(inputs, library=library)
    if inputs.lm_head is not None:
        return sglang_steps.sglang_domino(inputs, library=library)
    return sglang_steps.sglang(inputs, library=library)


def agreements(
    case: HeadCase, paths: Sequence[str], first_tokens: Callable[[str], torch.Tensor]
) -> tuple[dict[str, float | None], list[str]]:
    """How many first tokens of each baseline are ours.

    Of heads with a state: how many second tokens, which a state has a part in, of the requests
    whose first tokens are ours.

    Args:
        case: what is compared.
        paths: of others.
        first_tokens: a path -> its tokens of the same inputs, int64 [n, 1 or 2].

    Returns:
        The share for each baseline that may be timed (None where it says nothing), and the others
        with the reason: they raised, or they compute something else.
    """
    wanted = first_tokens("wts")
    shares: dict[str, float | None] = {}
    faults = []
    for path in paths:
        try:
            share = agreement(wanted, first_tokens(path))
        except Exception as error:
            # Foreign code on a foreign compiler: its failure must not cost our own times.
            traceback.print_exc()
            faults.append(f"{path}: {type(error).__name__}: {error}")
            continue
        if path == "step_torch" and case.sampled:
            shares[path] = None  # it draws other noise, so its tokens say nothing
        elif share < _LEAST_AGREEMENT:
            faults.append(
                f"{path}: {share:.0%} of its first tokens are ours, wanted at least "
                f"{_LEAST_AGREEMENT:.0%}; it computes something else"
            )
        else:
            shares[path] = share
    return shares, faults
