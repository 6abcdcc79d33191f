"""What a Walker asks of its head and its plan, and of the tensors of a call."""

from __future__ import annotations

import torch

from wts.errors import HeadError, InputError, PlanError, describe
from wts.heads.base import Head, weights_of
from wts.heads.load import head_classes
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.selection.exact_head import check_exact_weights

__all__ = [
    "LONGEST_TIMEOUT_MS",
    "check_beside",
    "check_exact",
    "check_hidden",
    "check_inputs",
    "check_kind",
    "check_plan",
    "check_sampling",
    "check_shapes",
    "check_timeout",
]


# The kernel counts polls of about 0.2 us in 32 bits; a limit has to end before they wrap.
LONGEST_TIMEOUT_MS = 600_000


def check_timeout(timeout_ms: int) -> None:
    """Refuse (InputError) a time limit out of range."""
    is_int = isinstance(timeout_ms, int) and not isinstance(timeout_ms, bool)
    if not is_int or not 1 <= timeout_ms <= LONGEST_TIMEOUT_MS:
        raise InputError(
            f"timeout_ms: wanted an integer from 1 to {LONGEST_TIMEOUT_MS}, "
            f"found {timeout_ms!r}; give a limit in milliseconds"
        )


def check_inputs(
    plan: ResidentPlan,
    device: torch.device | None,
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    out: torch.Tensor | None,
) -> None:
    """Refuse base logits, anchors or a tensor for tokens that do not fit a plan.

    Args:
        plan: of the Walker.
        device: where they have to be; None: anywhere.
        base_logits, anchor, out: as `Walker.__call__` has them.

    Raises:
        InputError: names the argument that does not fit.
    """
    dtype = DTYPE_OF[plan.request.base_type]
    given = {"base_logits": base_logits, "anchor": anchor}
    if out is not None:
        given["out"] = out
    for name, value in given.items():
        _check_tensor(name, value)
        if device is not None and value.device != device:
            raise InputError(
                f"{name}: wanted a tensor on {device}, found one on {value.device}; move it"
            )
    if base_logits.dtype != dtype:
        raise InputError(
            f"base_logits: wanted {dtype}, as planned, found {describe(base_logits)}; "
            "convert it, or plan with another base_type"
        )
    request, vocab = plan.request, plan.request.shape.vocab
    fits = (
        base_logits.ndim == 3
        and 1 <= base_logits.shape[0] <= request.batch
        and 1 <= base_logits.shape[1] <= request.steps
        and base_logits.shape[2] >= vocab
    )
    if not fits:
        raise InputError(
            f"base_logits: wanted [1..{request.batch}, 1..{request.steps}, at least {vocab}], "
            f"found {describe(base_logits)}; pass fewer rows, or plan for more"
        )
    if base_logits.shape[2] > 1 and base_logits.stride(2) != 1:
        raise InputError(
            f"base_logits: wanted stride 1 in the last dimension, found "
            f"{base_logits.stride(2)}; call .contiguous()"
        )
    batch, steps = base_logits.shape[:2]
    if anchor.dtype != torch.int64 or tuple(anchor.shape) != (batch,):
        raise InputError(
            f"anchor: wanted int64[{batch}], one token per row of base_logits, "
            f"found {describe(anchor)}; convert it"
        )
    if out is not None and (
        out.dtype != torch.int64
        or tuple(out.shape) != (batch, steps)
        or not out.is_contiguous()
        or out.device != base_logits.device
    ):
        raise InputError(
            f"out: wanted contiguous int64[{batch}, {steps}] on {base_logits.device}, "
            f"found {describe(out)} on {out.device}; allocate it so"
        )


def check_hidden(size: int | None, base_logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
    """Refuse hidden states that a head of this hidden size (None: it reads none) cannot read.

    Raises:
        InputError: another shape, type or device than the base logits want.
    """
    if size is None:
        if hidden is not None:
            raise InputError(
                "hidden: wanted None, since a Markov head reads no hidden states, "
                f"found {type(hidden).__name__}; leave it out"
            )
        return
    _check_tensor("hidden", hidden)
    assert hidden is not None
    wanted = (*base_logits.shape[:2], size)
    if hidden.dtype != torch.bfloat16 or tuple(hidden.shape) != wanted:
        raise InputError.mismatch(
            "hidden",
            wanted=f"bfloat16{list(wanted)}, one hidden state per row of base_logits",
            found=describe(hidden),
            fix="pass the drafter's output at the positions of the base logits",
        )
    if hidden.device != base_logits.device:
        raise InputError.mismatch(
            "hidden",
            wanted=f"a tensor on {base_logits.device}, as base_logits",
            found=f"one on {hidden.device}",
            fix="move it",
        )


def check_sampling(
    plan: ResidentPlan,
    base_logits: torch.Tensor,
    temperatures: torch.Tensor | None,
    noise: Noise | None,
    logits_out: torch.Tensor | None,
) -> None:
    """Refuse what sampling lacks, or what a greedy plan has no use for.

    Raises:
        InputError: names the argument that does not fit; they are as `Walker.__call__` has them.
    """
    device = base_logits.device
    batch, steps = base_logits.shape[:2]
    if not plan.request.sampled:
        for name, value in (
            ("temperatures", temperatures),
            ("noise", noise),
            ("logits_out", logits_out),
        ):
            if value is not None:
                raise InputError.mismatch(
                    name,
                    wanted="None under a greedy plan",
                    found=type(value).__name__,
                    fix="leave it out, or plan with sampled=True",
                )
        return
    if temperatures is None or noise is None:
        raise InputError.mismatch(
            "temperatures" if temperatures is None else "noise",
            wanted="a value under a plan with sampled=True",
            found="None",
            fix="pass it, or use a greedy plan",
        )
    _check_tensor("temperatures", temperatures)
    if logits_out is not None:
        _check_tensor("logits_out", logits_out)
    if not isinstance(noise, Noise):
        raise InputError.mismatch(
            "noise",
            wanted="a Noise",
            found=type(noise).__name__,
            fix="pass Noise(key=..., offset=...)",
        )
    if (
        temperatures.dtype != torch.float32
        or tuple(temperatures.shape) != (batch,)
        or not temperatures.is_contiguous()
        or temperatures.device != device
    ):
        raise InputError.mismatch(
            "temperatures",
            wanted=f"contiguous float32[{batch}] on {device}",
            found=f"{describe(temperatures)} on {temperatures.device}",
            fix="convert it",
        )
    if noise.offset.device != device:
        raise InputError.mismatch(
            "noise.offset",
            wanted=f"a counter on {device}",
            found=f"one on {noise.offset.device}",
            fix="allocate it there",
        )
    dtype = DTYPE_OF[plan.request.step_type]
    if logits_out is not None and (
        logits_out.dtype != dtype
        or logits_out.ndim != 3
        or tuple(logits_out.shape[:2]) != (batch, steps)
        or logits_out.shape[2] < plan.request.shape.vocab
        or (logits_out.shape[2] > 1 and logits_out.stride(2) != 1)
        or any(logits_out.stride(i) == 0 and logits_out.shape[i] > 1 for i in (0, 1))
        or logits_out.device != device
    ):
        raise InputError.mismatch(
            "logits_out",
            wanted=f"{dtype}[{batch}, {steps}, at least {plan.request.shape.vocab}] on {device}, "
            "stride 1 in the last dimension, no two rows in one place",
            found=f"{describe(logits_out)} on {logits_out.device}, "
            f"strides {list(logits_out.stride())}",
            fix="allocate torch.zeros of that shape",
        )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor) or value.is_meta:
        raise InputError.mismatch(
            name,
            wanted="a torch tensor with memory",
            found="a meta tensor" if isinstance(value, torch.Tensor) else type(value).__name__,
            fix="pass its values",
        )


def check_kind(head: Head, first: Head) -> None:
    """Refuse (HeadError) another kind of head than the first one."""
    if isinstance(head, head_classes()) and type(head) is not type(first):
        raise HeadError.mismatch(
            "head",
            wanted=f"a {type(first).__name__}, as this Walker was made with",
            found=type(head).__name__,
            fix="make a new Walker for it",
        )


def check_shapes(head: Head, first: Head) -> None:
    """Refuse (PlanError) weights of other shapes than the first head's."""
    if head.latents_are_rows:
        return  # of which the plan names every size
    for (name, weight), kept in zip(
        weights_of(head).items(), weights_of(first).values(), strict=True
    ):
        if name not in ("projection", "draft_to_target") and weight.shape != kept.shape:
            raise PlanError.mismatch(
                f"head.{name}",
                wanted=f"{describe(kept)}, as this Walker was made with",
                found=describe(weight),
                fix="make a new Walker for it",
            )


def check_plan(head: Head, plan: ResidentPlan) -> None:
    """Refuse what is no head (HeadError), or a plan made for another one (PlanError)."""
    classes = head_classes()
    if not isinstance(head, classes):
        names = [kind.__name__ for kind in classes]
        raise HeadError.mismatch(
            "head",
            wanted=f"a {', '.join(names[:-1])} or {names[-1]}",
            found=type(head).__name__,
            fix="build one of its weights, or with from_checkpoint(folder)",
        )
    if not isinstance(plan, ResidentPlan):
        raise PlanError.mismatch(
            "plan",
            wanted="a ResidentPlan",
            found=type(plan).__name__,
            fix="make it with plan_residency(head, ...)",
        )
    mapped = head.draft_to_target is not None
    step_dtype = torch.promote_types(DTYPE_OF[plan.request.base_type], head.table.dtype)
    wanted = (
        head.kind,
        head.state_size,
        head.hidden_size or 0,
        head.vocab,
        head.rank,
        head.table_rows,
        mapped,
        step_dtype,
    )
    request, shape = plan.request, plan.request.shape
    planned = (shape.kind, shape.state, shape.hidden, shape.vocab, shape.rank)
    found = (*planned, request.table_rows, shape.mapped, DTYPE_OF[request.step_type])
    types = (head.projection.dtype, head.table.dtype)
    if plan.request.weights == "bf16" and types != (torch.bfloat16, torch.bfloat16):
        raise PlanError.mismatch(
            "plan",
            wanted=f"one with int8 weights, for a head of {types[0]} and a table of {types[1]}",
            found="bf16 weights",
            fix="convert the head to bf16, or plan with weights='int8'",
        )
    if wanted != found:
        raise PlanError(
            f"plan: wanted one for (kind, state, hidden, vocab, rank, table rows, mapped, "
            f"dtype) = {wanted}, found {found}; make it with plan_residency(head, ...)"
        )
    if plan.request.exact:
        check_exact_weights(head)


def check_beside(plan: ResidentPlan, greedy: ResidentPlan) -> None:
    """Refuse (PlanError) a greedy plan that cannot take over the greedy batches of another."""
    if not plan.request.sampled:
        raise PlanError.mismatch(
            "greedy_plan",
            wanted="none beside a plan whose rows are all greedy",
            found="one",
            fix="leave it out, or plan with sampled=True",
        )

    def of(one: ResidentPlan) -> str:
        request = one.request
        types = f"weights {request.weights}, base_type {request.base_type}, arch {one.gpu.arch}"
        return f"exact {request.exact}, {types}"

    asked, offered = plan.request, greedy.request
    short = offered.batch < asked.batch or offered.steps < asked.steps
    if offered.sampled or short or of(greedy) != of(plan):
        raise PlanError.mismatch(
            "greedy_plan",
            wanted=f"at least {asked.batch} requests and {asked.steps} steps, none sampled, "
            f"{of(plan)}",
            found=f"{offered.batch} requests and {offered.steps} steps, "
            f"{'some' if offered.sampled else 'none'} sampled, {of(greedy)}",
            fix="make it with the arguments of the other plan, but without sampled=True",
        )


def check_exact(plan: ResidentPlan, exact: bool | None) -> None:
    """Refuse (PlanError) a plan that is not as exact as was asked for; None asks for nothing."""
    if exact is not None and exact is not plan.request.exact:
        raise PlanError.mismatch(
            "exact",
            wanted=f"{plan.request.exact}, as planned, or None",
            found=repr(exact),
            fix=f"plan with plan_residency(head, ..., exact={bool(exact)})",
        )
