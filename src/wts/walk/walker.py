"""Walker, the public entry: walks on the device, or as the emulator or the reference does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch

from wts.errors import CompileError, DeviceError, InputError
from wts.heads.base import Head
from wts.kernels.driver import cuda_device
from wts.kernels.launch import LoadedKernel
from wts.kernels.packed import PackedHead, packed_bytes
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.selection.call import Call
from wts.walk.backends import (
    Backend,
    BackendName,
    DeviceBackend,
    EmulatorBackend,
    ReferenceBackend,
    WalkReport,
    check_backend,
)
from wts.walk.emulator import Emulator
from wts.walk.validate import (
    check_beside,
    check_exact,
    check_hidden,
    check_inputs,
    check_kind,
    check_plan,
    check_sampling,
    check_shapes,
    check_timeout,
)

__all__ = ["Walker"]

logger = logging.getLogger("wts")


class Walker:
    """Runs walks of one head under one plan.

    Everything slow happens here: packing, compiling, allocating. A call of a device Walker
    launches one kernel on the caller's current stream, where the head reads hidden states perhaps
    after a copy, a matrix product and its bias (unless the kernel multiplies them); it allocates
    only the token tensor (or nothing, with `out`), never synchronises, and can be captured in a
    CUDA graph.

    On every backend weights are taken at construction and by `refresh`, packed or (by the
    reference) copied: after changing them in place call `refresh`. One Walker is for one stream
    at a time; two streams need two Walkers.

    Args:
        head: the head.
        plan: a plan made for its shape (and, on the device, for this GPU).
        backend: "device"; "emulator" (CPU, the device's numbers bit for bit); "reference" (the
            formula of the unquantised head); "auto": the device, or an error that says why not. Or
            a backend that was made by hand, of this head and under this plan: a kernel that no
            other way leads to.
        device: where a device Walker lives; the current CUDA device by default.
        fallback: lets "auto" fall back to the emulator, with a warning in the log.
        timeout_ms: how long a block waits for the others before the walk is given up, 1 to
            600,000.
        exact: whether the walk is exact: True asks for a plan of exact walks, and any other plan
            is an error; None takes the plan as it is. An exact Walker reads the head's own W (and a
            Markov head's table) in place: it keeps the head alive, and they must not be changed but
            together with `refresh`, on the stream of the walks.
        sharing: Walkers of this very head, on the same backend and device, whose packed weights
            this one uses where it can: `WalkerSet` makes and refreshes such Walkers.
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

    head: Head
    """The head whose weights are walked."""

    shares: bool
    """Whether other Walkers hold some of the same packed weights."""

    _on: Backend
    _last: tuple[int, int] | None

    def __init__(
        self,
        head: Head,
        plan: ResidentPlan,
        *,
        backend: Backend | BackendName | Literal["auto"] = "auto",
        device: str | torch.device | None = None,
        fallback: bool = False,
        timeout_ms: int = 2000,
        exact: bool | None = None,
        sharing: Sequence[Walker] = (),
        greedy_plan: ResidentPlan | None = None,
    ) -> None:
        check_backend(backend, plan)
        check_timeout(timeout_ms)
        check_plan(head, plan)
        check_exact(plan, exact)
        if greedy_plan is not None:
            check_plan(head, greedy_plan)
            check_beside(plan, greedy_plan)
        _check_sharing(head, sharing)
        if isinstance(backend, str):
            backend = _make_backend(
                head,
                plan,
                backend,
                device,
                fallback=fallback,
                timeout_ms=timeout_ms,
                greedy_plan=greedy_plan,
                share_with=_packed_of(sharing),
            )
        self.head, self.shares = head, bool(sharing)
        self._on, self._last = backend, None
        for other in sharing:
            other.shares = True

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
        check_inputs(self.plan, self._on.device, base_logits, anchor, out)
        check_hidden(self.head.hidden_size, base_logits, hidden)
        check_sampling(self.plan, base_logits, temperatures, noise, logits_out)
        call = Call(
            base_logits=base_logits,
            anchor=anchor,
            hidden=hidden,
            temperatures=temperatures,
            noise=noise,
            logits_out=logits_out,
        )
        self._last = (call.batch, call.steps)
        return self._on.walk(call, out)

    def twin(self, backend: Literal["emulator"] = "emulator") -> Emulator:
        """The walk of the same packed bytes on the CPU, to compare tokens with.

        It has a copy of what this Walker has packed, so that both read the same input rows: a GPU
        makes them by another library's products. What hidden states added to a walk is handed over:
        `twin(base_logits, anchor, hidden_term=walker.hidden_term())`.

        Args:
            backend: what reads the bytes: "emulator" is the only one.

        Raises:
            InputError: another backend, or a Walker that has nothing packed: the reference.
        """
        if backend != "emulator" or not self.packs:
            raise InputError.mismatch(
                "twin",
                wanted="'emulator', of a Walker with packed weights",
                found=f"{backend!r} of the {self.backend}",
                fix="make a Walker of the head with that backend",
            )
        return Emulator(plan=self.plan, packed=self.packs[0].copied(torch.device("cpu")))

    def hidden_term(
        self, batch: int | None = None, steps: int | None = None
    ) -> torch.Tensor | None:
        """What hidden states added to each step of the last walk.

        Args:
            batch, steps: B and K of that walk; by default those of the last call, which are not
                those of a captured graph that was replayed since.

        Returns:
            fp32 [B, K, P] on the CPU, as the kernel of `plan` was given it or made it; None for a
            head that reads no hidden states.

        Raises:
            InputError: no walk yet, or a Walker that has nothing packed: the reference.
        """
        if self.head.hidden_size is None:
            return None
        if self._last is None:
            raise InputError.mismatch(
                "hidden_term",
                wanted="a Walker that has walked",
                found="no walk",
                fix="call it after a walk",
            )
        last_batch, last_steps = self._last
        return self._on.hidden_term(batch or last_batch, steps or last_steps)

    def refresh(self, head: Head) -> None:
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
        if self.shares:
            raise InputError.mismatch(
                "refresh",
                wanted="a Walker whose packed weights are its own",
                found="one that shares them",
                fix="refresh all that share them at once: WalkerSet.refresh(head)",
            )
        self.check_refresh(head)
        self.take(head)

    def check_refresh(self, head: Head) -> None:
        """Refuse weights that this Walker cannot take, before anything of it is packed.

        Raises:
            HeadError, PlanError: as `refresh`.
        """
        check_kind(head, self.head)
        check_plan(head, self.plan)
        check_shapes(head, self.head)

    def take(self, head: Head, share_with: Sequence[Walker] = ()) -> None:
        """Take changed weights that `check_refresh` has let pass.

        Args:
            head: the changed head.
            share_with: Walkers that share packed weights with this one and have taken them already:
                what they have packed is not packed again.
        """
        self._on.refresh(head, _packed_of(share_with))
        self.head = head

    @property
    def backend(self) -> BackendName:
        """What it walks on."""
        return self._on.name

    @property
    def plan(self) -> ResidentPlan:
        """The plan that it walks under; that of a kernel with fewer registers where need was."""
        return self._on.plan

    @property
    def greedy_plan(self) -> ResidentPlan | None:
        """The plan of batches without a sampled row, if they have one of their own."""
        return self._on.greedy_plan

    @property
    def kernels(self) -> Sequence[LoadedKernel]:
        """The kernels that a call launches, that of `plan` first; none but on the device."""
        return self._on.kernels

    @property
    def packs(self) -> list[PackedHead]:
        """All packed weights, which may share tensors: `packed`, and the greedy plan's."""
        return self._on.packs

    @property
    def packed(self) -> PackedHead | None:
        """The packed weights; None on the reference backend, which has plain ones."""
        return self.packs[0] if self.packs else None

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside packed weights; of the reference its own copy of plain ones."""
        return self._on.workspace_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes this Walker holds beyond the head it was given."""
        return packed_bytes(self.packs) + self.workspace_bytes

    def check(self) -> None:
        """Wait for the walks so far and raise if one was given up.

        Raises:
            WalkTimeout: says which block waited for which, and at which step. The workspace is
                cleared, so the next walk starts afresh.
        """
        self._on.check()

    def report(self) -> WalkReport:
        """Wait for the walks so far and say what they noticed."""
        return self._on.report()


def _make_backend(
    head: Head,
    plan: ResidentPlan,
    name: BackendName | Literal["auto"],
    device: str | torch.device | None,
    *,
    fallback: bool,
    timeout_ms: int,
    greedy_plan: ResidentPlan | None,
    share_with: Sequence[PackedHead],
) -> Backend:
    """What is asked for by name; "auto" is the device, or with `fallback` perhaps the emulator."""
    if name in ("auto", "device"):
        try:
            made = DeviceBackend.load(
                head,
                plan,
                cuda_device(device),
                timeout_ms,
                greedy_plan=greedy_plan,
                share_with=share_with,
            )
        except (CompileError, DeviceError) as error:
            if name == "device" or not fallback:
                raise
            logger.warning("wts: walking on the emulator, not on a GPU: %s", error)
        else:
            _warn_of_slow(made.plan)
            return made
    if name == "reference":
        return ReferenceBackend(head, plan)
    return EmulatorBackend.pack(head, plan, share_with)


def _warn_of_slow(plan: ResidentPlan) -> None:
    if plan.placement.slower_than_stepwise:
        logger.warning(
            "wts: plan %s reads %.1f times the projection from L2 a step, for which "
            "step-wise execution is faster; walk fewer requests at once",
            plan.hash,
            plan.placement.reads_of_w_per_step,
        )


def _check_sharing(head: Head, sharing: Sequence[Walker]) -> None:
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
