"""Walker, the public entry: walks on the device, or as the emulator or the reference does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch

from wts.errors import CompileError, DeviceError, InputError
from wts.heads.base import weights_of, with_weights
from wts.heads.cells import AnyHead
from wts.kernels.driver import cuda_device
from wts.kernels.launch import LoadedKernel, check_each
from wts.kernels.packed import PackedHead, pack_head, packed_bytes
from wts.kernels.resident.args import Turn
from wts.kernels.resident.plan import ResidencyPlan
from wts.numerics.gumbel import Noise
from wts.walk.emulator import Emulator
from wts.walk.reference import reference_walk
from wts.walk.validate import (
    check_beside,
    check_exact,
    check_hidden,
    check_inputs,
    check_kind,
    check_plan,
    check_sampling,
    check_shapes,
)

__all__ = ["Backend", "WalkReport", "Walker"]

logger = logging.getLogger("wts")
Backend = Literal["device", "emulator", "reference"]

# The kernel counts polls of about 0.2 us in 32 bits; a limit has to end before they wrap.
LONGEST_TIMEOUT_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkReport:
    """What walks left behind since the Walker was made; a device counts modulo 2^32.

    Args:
        clamped_anchors: anchors outside the table, clamped for the look-up.
        rescored_steps: of exact walks on the device: steps of a request in which int8 sums left
            more than one row open, so that exact logits decided.
        rescored_rows: rows whose exact logits were computed for that, each counted once.
    """

    clamped_anchors: int
    rescored_steps: int = 0
    rescored_rows: int = 0


class Walker:
    """Runs walks of one head under one plan.

    Everything slow happens here: packing, compiling, allocating. A call of a device Walker
    launches one kernel on the caller's current stream, where the head reads hidden states perhaps
    after a copy, a matrix product and its bias (unless `plan.hidden_inside`); it allocates only the
    token tensor (or nothing, with `out`), never synchronises, and can be captured in a CUDA graph.

    On every backend weights are taken at construction and by `refresh`, packed or (by the
    reference) copied: after changing them in place call `refresh`. One Walker is for one stream
    at a time; two streams need two Walkers.

    Args:
        head: the head.
        plan: a plan made for its shape (and, on the device, for this GPU).
        backend: "device"; "emulator" (CPU, the device's numbers bit for bit); "reference" (the
            formula of the unquantised head); "auto": the device, or an error that says why not.
        device: where a device Walker lives; the current CUDA device by default.
        fallback: lets "auto" fall back to the emulator, with a warning in the log.
        timeout_ms: how long a block waits for the others before the walk is given up, 1 to
            600,000.
        exact: whether the walk is exact: True asks for what `plan.exact` says, and any other plan
            is an error; None takes the plan as it is. An exact Walker reads the head's own W (and a
            Markov head's table) in place: it keeps the head alive, and they must not be changed but
            together with `refresh`, on the stream of the walks.
        sharing: Walkers of this very head, on the same backend and device, whose packed weights
            this one uses where it can: `walkers.WalkerSet` makes and refreshes such Walkers.
        greedy_plan: beside a plan with sampled=True, a greedy one for the same walks. A call then
            launches two kernels, one of which leaves at once, by the temperatures that it reads:
            batches without a sampled row walk under the greedy plan, which is faster, in the same
            captured graph. Other backends need none. Tokens are the same without it, but where only
            one plan has `hidden_inside`: sums over hidden states then differ in their order.

    Raises:
        HeadError: what is no head.
        PlanError: a plan for another head.
        DeviceError: no Hopper or Blackwell GPU, a plan for another kind of GPU, or fewer
            co-resident blocks than planned.
        CompileError: no compiler, or a kernel that does not come out as planned.
    """

    def __init__(
        self,
        head: AnyHead,
        plan: ResidencyPlan,
        *,
        backend: Backend | Literal["auto"] = "auto",
        device: str | torch.device | None = None,
        fallback: bool = False,
        timeout_ms: int = 2000,
        exact: bool | None = None,
        sharing: Sequence[Walker] = (),
        greedy_plan: ResidencyPlan | None = None,
    ) -> None:
        if backend not in ("auto", "device", "emulator", "reference"):
            raise InputError(
                "backend: wanted 'auto', 'device', 'emulator' or 'reference', "
                f"found {backend!r}; name one of them"
            )
        is_int = isinstance(timeout_ms, int) and not isinstance(timeout_ms, bool)
        if not is_int or not 1 <= timeout_ms <= LONGEST_TIMEOUT_MS:
            raise InputError(
                f"timeout_ms: wanted an integer from 1 to {LONGEST_TIMEOUT_MS}, "
                f"found {timeout_ms!r}; give a limit in milliseconds"
            )
        check_plan(head, plan)
        check_exact(plan, exact)
        if greedy_plan is not None:
            check_plan(head, greedy_plan)
            check_beside(plan, greedy_plan)
        _check_sharing(head, sharing)
        self._shares = bool(sharing)
        for other in sharing:
            other._shares = True
        self.head: AnyHead = head
        self.plan = plan
        self.backend: Backend
        self._device_walk: LoadedKernel | None = None
        self._greedy_walk: LoadedKernel | None = None
        self._emulator: Emulator | None = None
        self._reference: AnyHead | None = None
        self._clamped = 0
        if backend in ("auto", "device"):
            try:
                share_with = _packed_of(sharing)
                walk = LoadedKernel(
                    head, plan, cuda_device(device), timeout_ms, share_with=share_with
                )
                if greedy_plan is not None:
                    self._greedy_walk = LoadedKernel(
                        head,
                        greedy_plan,
                        walk.device,
                        timeout_ms,
                        share_with=[*share_with, walk.packed],
                    )
                self._device_walk = walk
                self.backend = "device"
                self.plan = walk.plan
                if self.plan.loses:
                    logger.warning(
                        "wts: plan %s reads %.1f times the projection from L2 a step, for which "
                        "step-wise execution is faster; walk fewer requests at once",
                        self.plan.hash,
                        self.plan.readings,
                    )
                return
            except (CompileError, DeviceError) as error:
                if backend == "device" or not fallback:
                    raise
                logger.warning("wts: walking on the emulator, not on a GPU: %s", error)
            backend = "emulator"
        if backend == "emulator":
            packed = pack_head(head, plan, torch.device("cpu"), share_with=_packed_of(sharing))
            self._emulator = Emulator(plan=plan, packed=packed)
        else:
            self._reference = with_weights(head, torch.clone)
        self.backend = cast(Backend, backend)

    @torch.no_grad()
    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        logits_out: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Draft a block.

        Args:
            base_logits: [B, K, V'] in the plan's base type, B up to the plan's batch, K up to its
                steps, V' at least the head's vocabulary; unit stride in the last dimension, any
                others. On the device: on its GPU.
            anchor: int64 [B], the token before the first step; any stride. An anchor outside the
                table is clamped for the look-up and counted in `report()`.
            hidden: bf16 [B, K, H], any strides: the drafter's hidden states at the positions of
                the base logits (`DominoHead.drafting_hidden` chooses them), where the base logits
                are; None for a Markov head.
            temperatures: fp32 [B], under a plan with sampled=True: rows above 0 are sampled, all
                others (0, negative, NaN) are greedy. Read by the kernel, so one captured graph
                serves any mix. None under a greedy plan, and then all rows are greedy.
            noise: where the noise of sampled rows comes from, under a plan with sampled=True. Its
                offset is advanced by one, on the device.
            logits_out: [B, K, V'] in the step's type (the promotion of base logits and table):
                where sampled rows leave the step logits they were drawn from. Rows of greedy
                requests are not written. None: nowhere.
            out: int64 [B, K], contiguous, sharing no memory with anchor: where the tokens go; a new
                tensor by default.

        Returns:
            int64 [B, K], target ids. On the device they are ready when the stream is.

        Raises:
            InputError: an argument that does not fit the head or the plan.
        """
        on = None if self._device_walk is None else self._device_walk.device
        check_inputs(self.plan, on, base_logits, anchor, out)
        check_hidden(self.head.hidden_size, base_logits, hidden)
        check_sampling(self.plan, base_logits, temperatures, noise, logits_out)
        if self._device_walk is not None:
            batch, steps, _ = base_logits.shape
            if out is None:
                out = torch.empty(batch, steps, dtype=torch.int64, device=base_logits.device)
            beside = self._greedy_walk
            launch = partial(
                LoadedKernel.launch,
                base_logits=base_logits,
                anchor=anchor,
                tokens=out,
                hidden=hidden,
                temperatures=temperatures,
                noise=noise,
            )
            turn = Turn.ALWAYS if beside is None else Turn.ANY_SAMPLED
            launch(self._device_walk, logits_out=logits_out, turn=turn)
            if beside is not None:
                launch(beside, turn=Turn.ALL_GREEDY, part=self._device_walk.part_for(beside))
            return out
        if self._emulator is not None:
            tokens, clamped = self._emulator.walk(
                base_logits.cpu(),
                anchor.cpu(),
                hidden_term=self._emulator.packed.hidden_term(
                    None if hidden is None else hidden.cpu()
                ),
                temperatures=None if temperatures is None else temperatures.cpu(),
                noise=noise,
                logits_out=logits_out,
            )
        else:
            assert self._reference is not None
            device = self._reference.projection.device
            clamped = int(((anchor < 0) | (anchor >= self._reference.table_rows)).sum())
            tokens = reference_walk(
                self._reference,
                base_logits.to(device),
                anchor.to(device),
                hidden=None if hidden is None else hidden.to(device),
                temperatures=None if temperatures is None else temperatures.to(device),
                noise=noise,
                logits_out=logits_out,
            )
        self._clamped += clamped
        tokens = tokens.to(base_logits.device)
        return tokens if out is None else out.copy_(tokens)

    def refresh(self, head: AnyHead) -> None:
        """Take changed weights; captured graphs serve them from their next replay on.

        On the device they are packed in place, on the current stream: call this on the stream of
        the walks.

        Args:
            head: of the same kind, shapes and dtypes as the first one.

        Raises:
            HeadError: what is no head, or one of another kind.
            PlanError: another shape.
            InputError: packed weights that other Walkers share.
        """
        if self._shares:
            raise InputError.mismatch(
                "refresh",
                wanted="a Walker whose packed weights are its own",
                found="one that shares them",
                fix="refresh all that share them at once: WalkerSet.refresh(head)",
            )
        self._refresh(head, ())

    def _check_refresh(self, head: AnyHead) -> None:
        """Refuse weights that this Walker cannot take, before anything of it is packed."""
        check_kind(head, self.head)
        check_plan(head, self.plan)
        check_shapes(head, self.head)

    def _refresh(self, head: AnyHead, share_with: Sequence[Walker]) -> None:
        """Take changed weights, but what others that were refreshed already have packed."""
        self._check_refresh(head)
        packed = self.packed
        if packed is None:
            self._reference = with_weights(head, torch.clone)
        else:
            device = packed.tiles.device
            packed = pack_head(
                head, self.plan, device, into=packed, share_with=_packed_of(share_with)
            )
            if self._device_walk is not None:
                self._device_walk.take(packed)
                if self._greedy_walk is not None:
                    beside = self._greedy_walk
                    fresh = [*_packed_of(share_with), packed]
                    beside.take(
                        pack_head(head, beside.plan, device, into=beside.packed, share_with=fresh)
                    )
            else:
                self._emulator = Emulator(plan=self.plan, packed=packed)
        self.head = head

    @property
    def packed(self) -> PackedHead | None:
        """The packed weights; None on the reference backend, which has plain ones."""
        if self._device_walk is not None:
            return self._device_walk.packed
        return None if self._emulator is None else self._emulator.packed

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside packed weights; none but on the device."""
        return sum(walk.workspace_bytes for walk in self._walks)

    @property
    def packs(self) -> list[PackedHead]:
        """All packed weights, which may share tensors: `packed`, and the greedy plan's."""
        if self._device_walk is not None:
            return [walk.packed for walk in self._walks]
        return [] if self._emulator is None else [self._emulator.packed]

    def check(self) -> None:
        """Wait for the walks so far and raise if one was given up.

        Raises:
            WalkTimeout: says which block waited for which, and at which step. The workspace is
                cleared, so the next walk starts afresh.
        """
        check_each(self._walks)

    def report(self) -> WalkReport:
        """Wait for the walks so far and say what they noticed."""
        if self._device_walk is None:
            return WalkReport(clamped_anchors=self._clamped)
        counters = [walk.read_status()[4:7] for walk in self._walks]
        # Counted in 32 bits without a sign, which torch reads with one.
        clamped, steps, rows = (sum(n) & 0xFFFFFFFF for n in zip(*counters, strict=True))
        return WalkReport(clamped_anchors=clamped, rescored_steps=steps, rescored_rows=rows)

    @property
    def greedy_plan(self) -> ResidencyPlan | None:
        """The plan of batches without a sampled row, if they have one of their own."""
        return None if self._greedy_walk is None else self._greedy_walk.plan

    @property
    def _walks(self) -> list[LoadedKernel]:
        """The kernels that a call launches; none but on the device."""
        return [walk for walk in (self._device_walk, self._greedy_walk) if walk is not None]

    @property
    def memory_bytes(self) -> int:
        """Bytes this Walker holds beyond the head it was given."""
        if self.packs:
            return packed_bytes(self.packs) + self.workspace_bytes
        assert self._reference is not None
        return sum(weight.nbytes for weight in weights_of(self._reference).values())


def _check_sharing(head: AnyHead, sharing: Sequence[Walker]) -> None:
    for other in sharing:
        if not isinstance(other, Walker) or other.head is not head:
            raise InputError.mismatch(
                "sharing",
                wanted="Walkers of this very head",
                found=f"a Walker of another {type(other.head).__name__}"
                if isinstance(other, Walker)
                else type(other).__name__,
                fix="leave it out, or make a WalkerSet",
            )


def _packed_of(walkers: Sequence[Walker]) -> list[PackedHead]:
    return [packed for walker in walkers for packed in walker.packs]
