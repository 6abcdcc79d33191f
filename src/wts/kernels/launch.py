"""The kernel of a plan on one GPU: loaded, given weights and a workspace, launched, asked after."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from wts.errors import CompileError, DeviceError, WalkTimeout
from wts.hardware.gpu import WALKED, arch_of, caution_of
from wts.heads.cells import AnyHead
from wts.heads.domino import DominoCell
from wts.heads.rnn import RnnCell
from wts.kernels.compile import KERNEL_NAME, compile_fitting, compile_walk
from wts.kernels.driver import driver_call
from wts.kernels.packed import PackedHead, pack_head
from wts.kernels.resident.args import Turn, WalkArgs
from wts.kernels.resident.plan import ResidencyPlan
from wts.numerics.gumbel import Noise
from wts.numerics.lane_sums import write_hidden_term
from wts.numerics.limits import EXACT_SOURCE_WORDS

__all__ = ["FIRST_SEQUENCE", "LoadedKernel", "check_each"]

logger = logging.getLogger("wts")
FIRST_SEQUENCE = 2  # so that a cleared slot, whose tag is 0, is nobody's word
_CLEARED = (FIRST_SEQUENCE, 0, 0, 0)  # sequence and error; the counters behind them stay
_STATUS_WORDS = 8


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
    """The kernel of one plan, loaded on one GPU, with its packed head and its workspace."""

    def __init__(
        self,
        head: AnyHead,
        plan: ResidencyPlan,
        device: torch.device,
        timeout_ms: int,
        *,
        trace: bool = False,
        spills: bool = False,
        share_with: Sequence[PackedHead] = (),
    ) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        arch = arch_of((major, minor))
        if arch not in WALKED or plan.arch != arch:
            raise DeviceError(
                "device: wanted a Hopper GPU (9.0) or one of Blackwell (10.0, 10.3), and a plan "
                f"for it, found {major}.{minor} and a plan for {plan.arch}; plan for this GPU "
                "('LOCAL'), or use backend='emulator' here"
            )
        if caution_of(arch):
            logger.warning("wts: %s", caution_of(arch))
        compiled = compile_walk(plan, spills=True) if spills else compile_fitting(plan, trace=trace)
        self.spill_bytes = compiled.used.spill_bytes
        self.plan = plan = compiled.plan
        self.device = device
        self.timeout_us = timeout_ms * 1000
        with torch.cuda.device(device):
            torch.zeros(1, device=device)  # makes torch's context current
            self._load(compiled.cubin)
            self.source = torch.zeros(
                EXACT_SOURCE_WORDS if plan.exact else 0, dtype=torch.int64, device=device
            )
            self.exact_slots = torch.zeros(plan.exact_words, dtype=torch.int64, device=device)
            self.take(pack_head(head, plan, device, share_with=share_with))
            self.slots = torch.zeros(
                plan.workspace_words * plan.word_bytes, dtype=torch.uint8, device=device
            )
            self.state_slots = torch.zeros(plan.state_words, dtype=torch.int64, device=device)
            self.part = torch.empty(
                plan.batch * plan.steps, plan.part, dtype=torch.float32, device=device
            )
            self._hidden = torch.empty(
                plan.batch * plan.steps,
                head.hidden_size or 0,
                dtype=torch.bfloat16,
                device=device,
            )
            self._cleared = torch.tensor(_CLEARED, dtype=torch.int32, device=device)
            self.status = torch.zeros(_STATUS_WORDS, dtype=torch.int32, device=device)
            self.status[: len(_CLEARED)] = self._cleared
            torch.cuda.synchronize(device)

    def take(self, packed: PackedHead) -> None:
        """Walk with these packed weights, whose addresses stay but for the unquantised ones."""
        self.packed: PackedHead = packed
        if packed.exact is not None:
            self.source.copy_(packed.exact.source())

    def _load(self, cubin: bytes) -> None:
        try:
            from cuda.bindings import driver
            from cuda.core import Device, ObjectCode
        except ImportError as error:  # the compiler was not asked: the cubin came from the cache
            raise CompileError.mismatch(
                "cuda.core",
                wanted="version 1.0 or later",
                found=error,
                fix="install the gpu extra; in a clone of the project: pip install '.[gpu]'",
            ) from error

        Device(self.device.index).set_current()
        self._context = driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        self._code = ObjectCode.from_cubin(cubin)
        self._kernel = self._code.get_kernel(KERNEL_NAME)
        self._function = driver.CUfunction(int(self._kernel.handle))
        attribute = driver.CUfunction_attribute
        driver_call(
            driver.cuKernelSetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self.plan.shared_bytes,
                driver.CUkernel(int(self._kernel.handle)),
                driver.CUdevice(self.device.index),
            ),
            "setting the kernel's shared memory",
        )
        per_sm = driver_call(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, self.plan.threads, self.plan.shared_bytes
            ),
            "asking for the kernel's occupancy",
        )
        sms = torch.cuda.get_device_properties(self.device).multi_processor_count
        if per_sm * sms < self.plan.num_blocks:
            raise DeviceError(
                f"plan: wanted at most {per_sm * sms} co-resident blocks on this GPU, found a "
                f"plan of {self.plan.num_blocks}; plan for it with plan_residency(head, 'LOCAL')"
            )

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside the packed weights."""
        workspace = [self.slots, self.status, self._cleared]
        workspace += [self.state_slots, self.part, self._hidden, self.source, self.exact_slots]
        return sum(tensor.nbytes for tensor in workspace)

    def part_for(self, other: LoadedKernel) -> torch.Tensor | None:
        """What this launch has made of hidden states, if another plan's can take it."""
        shared = not self.plan.hidden_inside and not other.plan.hidden_inside
        return self.part if shared and self.plan.part == other.plan.part > 0 else None

    def launch(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        tokens: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        logits_out: torch.Tensor | None = None,
        trace: torch.Tensor | None = None,
        turn: Turn = Turn.ALWAYS,
        part: torch.Tensor | None = None,
    ) -> None:
        """Launch one walk on the current stream.

        Args:
            turn: which batches it walks; of others it leaves everything as it is.
            part: what hidden states add to inner sums, where another plan's launch of the same
                call has made it; made here otherwise.
        """
        from cuda.bindings import driver

        packed = self.packed
        mapping = packed.draft_to_target
        if hidden is not None and part is None:
            hidden, part = self._prepare_hidden(hidden), self.part
        cell = packed.cell
        bias = None if cell is None else cell.hidden_bias
        state_weight = cell.state_weight if isinstance(cell, RnnCell | DominoCell) else None
        projector_weight = cell.projector_weight if isinstance(cell, DominoCell) else None
        args = WalkArgs(
            tiles=packed.tiles.data_ptr(),
            row_scale=packed.row_scale.data_ptr(),
            table=packed.table.data_ptr(),
            draft_to_target=None if mapping is None else mapping.data_ptr(),
            base=base_logits.data_ptr(),
            base_request_stride=base_logits.stride(0),
            base_step_stride=base_logits.stride(1),
            anchor=anchor.data_ptr(),
            anchor_stride=anchor.stride(0),
            tokens=tokens.data_ptr(),
            temperatures=None if temperatures is None else temperatures.data_ptr(),
            noise_offset=None if noise is None else noise.offset.data_ptr(),
            noise_key=0 if noise is None else noise.key,
            logits_out=None if logits_out is None else logits_out.data_ptr(),
            logits_request_stride=0 if logits_out is None else logits_out.stride(0),
            logits_step_stride=0 if logits_out is None else logits_out.stride(1),
            hidden_part=None
            if hidden is None
            else (self.part if part is None else part).data_ptr(),
            hidden=None if hidden is None else hidden.data_ptr(),
            hidden_request_stride=0 if hidden is None else hidden.stride(0),
            hidden_step_stride=0 if hidden is None else hidden.stride(1),
            hidden_weight=None if cell is None else cell.hidden_weight.data_ptr(),
            hidden_bias=None if bias is None else bias.data_ptr(),
            state_weight=None if state_weight is None else state_weight.data_ptr(),
            projector_weight=None if projector_weight is None else projector_weight.data_ptr(),
            state_slots=self.state_slots.data_ptr(),
            slots=self.slots.data_ptr(),
            status=self.status.data_ptr(),
            trace=None if trace is None else trace.data_ptr(),
            num_requests=base_logits.shape[0],
            num_steps=base_logits.shape[1],
            timeout_us=self.timeout_us,
            turn=turn,
            exact=self.source.data_ptr(),
            exact_slots=self.exact_slots.data_ptr(),
        )
        # Every block waits for every other, so all must be resident: the driver checks that.
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.plan.num_blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.plan.threads, 1, 1
        config.sharedMemBytes = self.plan.shared_bytes
        config.hStream = torch.cuda.current_stream(self.device).cuda_stream
        config.attrs = [cooperative]
        config.numAttrs = 1
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        with self._current_context():
            driver_call(
                driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(parameters), 0),
                f"launching a walk of {self.plan.num_blocks} co-resident blocks",
            )

    def _prepare_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, K, H] as the kernel reads them.

        Where it does not multiply them itself, what they add to its sums is made here, by one
        matrix product into memory of this object: bf16 factors, sums in fp32 in the library's
        order. The emulator takes the result as it is.
        """
        assert self.packed.cell is not None
        batch, steps, size = hidden.shape
        if self.plan.hidden_inside:  # by copies of whole 16-byte pieces
            starts = (hidden.data_ptr() // 2, hidden.stride(0), hidden.stride(1))
            fits = hidden.stride(2) == 1 and all(start % 8 == 0 for start in starts)
        else:
            fits = hidden.is_contiguous()
        if not fits:
            rows = self._hidden[: batch * steps].view(batch, steps, size)
            hidden = rows.copy_(hidden)
        if not self.plan.hidden_inside:
            part, weight = self.part[: batch * steps], self.packed.cell.hidden_weight
            rows = hidden.view(batch * steps, size)
            write_hidden_term(rows, weight, self.packed.cell.hidden_bias, part)
        return hidden

    @contextmanager
    def _current_context(self) -> Iterator[None]:
        """The context of this GPU: a new thread has none yet, and torch may be on another GPU."""
        from cuda.bindings import driver

        current = driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        if current == self._context:
            yield
            return
        driver_call(driver.cuCtxPushCurrent(self._context), "entering the context")
        try:
            yield
        finally:
            driver_call(driver.cuCtxPopCurrent(), "leaving the context")

    def read_status(self) -> list[int]:
        """Wait for the walks so far; the words of `struct Status` (csrc/status.cuh)."""
        torch.cuda.synchronize(self.device)
        return cast("list[int]", self.status.cpu().tolist())

    def check(self) -> None:
        """Wait for the walks so far; WalkTimeout, and a cleared workspace, if one was given up."""
        _, error, waiter, step, *_ = self.read_status()
        if error == 0:
            return
        self.slots.zero_()
        self.state_slots.zero_()
        self.exact_slots.zero_()
        self.status[: len(_CLEARED)] = self._cleared
        torch.cuda.synchronize(self.device)
        raise WalkTimeout(
            f"walk: wanted every block's word within {self.timeout_us / 1000:g} ms, found none of "
            f"block {error - 1} at step {step} (block {waiter} waited); its tokens are in range "
            "but wrong. Look for a debugger, a preempted GPU, or one Walker used on two streams"
        )
