"""The kernel of a plan on one GPU: loaded, given weights and a workspace, launched, asked after."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from wts.errors import DeviceError, WalkTimeout
from wts.hardware.gpu import WALKED, arch_of, caution_of
from wts.heads.base import Head
from wts.kernels.arguments import (
    Arguments,
    call_arguments,
    hidden_arguments,
    packed_arguments,
    workspace_arguments,
)
from wts.kernels.compile import KERNEL_NAME, compile_fitting, compile_walk
from wts.kernels.driver import DeviceFunction
from wts.kernels.packed import PackedHead, pack_head
from wts.kernels.resident.args import ARGS, EVENTS, TRACED_ROUNDS, Turn
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.workspace import Workspace
from wts.numerics.lane_sums import write_hidden_term
from wts.selection.call import Call

__all__ = ["LoadedKernel", "check_each"]

logger = logging.getLogger("wts")


class _Checked(Protocol):
    def check(self) -> None: ...


def check_each(walks: Iterable[_Checked]) -> None:
    """Check all, so that each that gave up is cleared; WalkTimeout is the first one's."""
    errors: list[WalkTimeout] = []
    for walk in walks:
        try:
            walk.check()
        except WalkTimeout as error:
            errors.append(error)
    if errors:
        raise errors[0]


class LoadedKernel:
    """The kernel of one plan, loaded on one GPU, with its packed head and its workspace.

    Args:
        head: the head.
        plan: a plan for it and for this GPU. `plan` of the result is another one where the
            compiler wants fewer registers.
        device: the GPU, with its index.
        timeout_ms: how long a block waits for the others before a walk is given up.
        trace: whether walks leave time stamps in `stamps`, for measurements: their writing costs a
            little itself, and such a kernel may spill registers.
        spills: whether a kernel of exactly this plan is wanted, even if it spills registers:
            `spill_bytes` says how much (for measurements).
        share_with: packed heads of the same weights on this GPU, whose tensors are used where they
            can be.

    Raises:
        DeviceError: no GPU that walks, a plan for another kind, or fewer co-resident blocks than
            planned.
        CompileError: no compiler, or a kernel that does not come out as planned.
    """

    def __init__(
        self,
        head: Head,
        plan: ResidentPlan,
        device: torch.device,
        timeout_ms: int,
        *,
        trace: bool = False,
        spills: bool = False,
        share_with: Sequence[PackedHead] = (),
    ) -> None:
        _check_gpu(plan, device)
        compiled = compile_walk(plan, spills=True) if spills else compile_fitting(plan, trace=trace)
        self.spill_bytes = compiled.used.spill_bytes
        self.plan = plan = compiled.plan
        self.device = device
        self.timeout_us = timeout_ms * 1000
        with torch.cuda.device(device):
            torch.zeros(1, device=device)  # makes torch's context current
            self._function = _load(compiled.cubin, plan, device)
            self.workspace = Workspace.allocate(plan, head.hidden_size, device)
            self.take(pack_head(head, plan, device, share_with=share_with))
            self.stamps = _stamps(plan, device) if trace else None
            torch.cuda.synchronize(device)

    def take(self, packed: PackedHead) -> None:
        """Walk with these packed weights, whose addresses stay but for the unquantised ones."""
        self.packed: PackedHead = packed
        if packed.exact is not None:
            self.workspace.exact_source.copy_(packed.exact.source())

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside the packed weights."""
        return self.workspace.memory_bytes

    def hidden_term(self, batch: int, steps: int) -> torch.Tensor:
        """What hidden states added to each step of the last walk, fp32 [B, K, P], in place."""
        return self.workspace.hidden_term[: batch * steps].view(batch, steps, -1)

    def takes_hidden_term_of(self, other: LoadedKernel) -> bool:
        """Whether this kernel can be given what a launch of the other has made of hidden states."""
        made_before = (
            not self.plan.recurrence.hidden_inside and not other.plan.recurrence.hidden_inside
        )
        return (
            made_before
            and self.plan.recurrence.hidden_term == other.plan.recurrence.hidden_term > 0
        )

    def launch(
        self,
        call: Call,
        tokens: torch.Tensor,
        *,
        turn: Turn = Turn.ALWAYS,
        hidden_term: torch.Tensor | None = None,
    ) -> None:
        """Launch one walk on the current stream.

        Args:
            call: what is walked, on this GPU.
            tokens: int64 [B, K], where its tokens go.
            turn: which batches it walks; of others it leaves everything as it is.
            hidden_term: what hidden states add to each step, where another kernel's launch of the
                same call has made it (`takes_hidden_term_of`); made here otherwise.
        """
        arguments = self.arguments(call, tokens, turn=turn, hidden_term=hidden_term)
        self._function.launch(ARGS.pack(**arguments), self.plan.shard.num_blocks)

    def arguments(
        self,
        call: Call,
        tokens: torch.Tensor,
        *,
        turn: Turn = Turn.ALWAYS,
        hidden_term: torch.Tensor | None = None,
    ) -> Arguments:
        """What a launch tells the kernel; hidden states are made readable for it, as `launch`."""
        hidden = call.hidden
        if hidden is not None and hidden_term is None:
            hidden = self._readable(hidden)
            hidden_term = self.hidden_term(call.batch, call.steps)
            if not self.plan.recurrence.hidden_inside:
                self._multiply(hidden, hidden_term)
        return {
            **call_arguments(call, tokens),
            **hidden_arguments(hidden, hidden_term),
            **packed_arguments(self.packed),
            **workspace_arguments(self.workspace),
            "trace": None if self.stamps is None else self.stamps.data_ptr(),
            "timeout_us": self.timeout_us,
            "turn": turn,
        }

    def _readable(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, K, H] where they can be read: by the kernel, or by a library."""
        if self.plan.recurrence.hidden_inside:  # by copies of whole 16-byte pieces
            starts = (hidden.data_ptr() // 2, hidden.stride(0), hidden.stride(1))
            fits = hidden.stride(2) == 1 and all(start % 8 == 0 for start in starts)
        else:
            fits = hidden.is_contiguous()
        if fits:
            return hidden
        batch, steps, size = hidden.shape
        return self.workspace.hidden_rows[: batch * steps].view(batch, steps, size).copy_(hidden)

    def _multiply(self, hidden: torch.Tensor, term: torch.Tensor) -> None:
        """Write what hidden states add to each step, where the kernel does not make it itself.

        That is one matrix product into memory of this object: bf16 factors, sums in fp32 in the
        library's order. The emulator takes the result as it is.
        """
        weight, bias = self.packed.steps.hidden_weight, self.packed.steps.hidden_bias
        assert weight is not None
        write_hidden_term(hidden.flatten(0, 1), weight, bias, term.flatten(0, 1))

    def read_status(self) -> dict[str, int]:
        """Wait for the walks so far; what they left in `STATUS`, by the names of its fields."""
        torch.cuda.synchronize(self.device)
        return self.workspace.read_status()

    def check(self) -> None:
        """Wait for the walks so far; WalkTimeout, and a cleared workspace, if one was given up."""
        status = self.read_status()
        error, waiter, step = (status[name] for name in ("error", "error_block", "error_step"))
        if error == 0:
            return
        self.workspace.clear()
        torch.cuda.synchronize(self.device)
        raise WalkTimeout(
            f"walk: wanted every block's word within {self.timeout_us / 1000:g} ms, found none of "
            f"block {error - 1} at step {step} (block {waiter} waited); its tokens are in range "
            "but wrong. Look for a debugger, a preempted GPU, or one Walker used on two streams"
        )


def _check_gpu(plan: ResidentPlan, device: torch.device) -> None:
    """Refuse (DeviceError) a GPU that does not walk, or that the plan is not for."""
    major, minor = torch.cuda.get_device_capability(device)
    arch = arch_of((major, minor))
    if arch not in WALKED or plan.gpu.arch != arch:
        raise DeviceError(
            "device: wanted a Hopper GPU (9.0) or one of Blackwell (10.0, 10.3), and a plan "
            f"for it, found {major}.{minor} and a plan for {plan.gpu.arch}; plan for this GPU "
            "('LOCAL'), or use backend='emulator' here"
        )
    if caution_of(arch):
        logger.warning("wts: %s", caution_of(arch))


def _load(cubin: bytes, plan: ResidentPlan, device: torch.device) -> DeviceFunction:
    """Load a kernel that the GPU holds all blocks of at once; DeviceError if it does not."""
    function = DeviceFunction(
        cubin, KERNEL_NAME, device, threads=plan.roles.threads, shared_bytes=plan.shared_bytes
    )
    most_blocks = function.most_blocks()
    if most_blocks < plan.shard.num_blocks:
        raise DeviceError(
            f"plan: wanted at most {most_blocks} co-resident blocks on this GPU, found a "
            f"plan of {plan.shard.num_blocks}; plan for it with plan_residency(head, 'LOCAL')"
        )
    return function


def _stamps(plan: ResidentPlan, device: torch.device) -> torch.Tensor:
    """Room for time stamps, int64 [blocks, traced rounds, events]; 0 where none was written."""
    shape = (plan.shard.num_blocks, TRACED_ROUNDS, len(EVENTS))
    return torch.zeros(shape, dtype=torch.int64, device=device)
