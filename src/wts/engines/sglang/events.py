"""SGLang's methods that an upkeep follows, and the one whose padding is cleared."""

from __future__ import annotations

import functools
from typing import Any

import torch

from wts.engines.common.reasons import Reason
from wts.engines.common.upkeep import Upkeep, class_of
from wts.engines.sglang.version import SGLANG, Release

__all__ = ["attach", "clear_padding"]


def attach(upkeep: Upkeep, release: Release) -> Reason | None:
    """Have an upkeep follow SGLang's methods: all of them, or it is turned off.

    Returns:
        Why it cannot be: then walks must stay off, since updated weights would not reach them.
    """
    return upkeep.attach(
        updates=[release.updates], parts=[release.parts], results=[release.results]
    )


def clear_padding(release: Release) -> bool:
    """Let rows that only fill a graph up be greedy, or a greedy batch would not be seen as one.

    SGLang leaves them what an earlier batch had.

    Returns:
        Whether its method could be hooked; if not, such batches walk under the slower plan.
    """
    (name,) = release.staging.names
    try:
        owner = class_of(release.staging.owner)
        method = getattr(owner, name)
    except Exception:  # an import of SGLang can fail in any way
        SGLANG.logger.info(
            "wts: greedy batches in padded graphs may walk under plans for sampled rows"
        )
        return False
    if hasattr(method, "wts_clears_padding"):
        return True

    @functools.wraps(method)
    def wrapped(sampler: Any, *args: Any, bs: int, **kwargs: Any) -> Any:
        result = method(sampler, *args, bs=bs, **kwargs)
        temperatures = getattr(getattr(sampler, "params", None), "step_temperatures", None)
        if isinstance(temperatures, torch.Tensor):
            temperatures[bs:].zero_()
        return result

    wrapped.wts_clears_padding = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    return True
