"""Walker, the public entry: packs a head, owns the workspace, launches walks, checks on them."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from wts.cells import AnyHead, DominoCell, RnnCell
from wts.compile import KERNEL_NAME, WalkArgs, compile_fitting, compile_walk
from wts.device import WALKED, arch_of, caution_of
from wts.emulator import Emulator
from wts.errors import (
    CompileError,
    DeviceError,
    HeadError,
    InputError,
    PlanError,
    WalkTimeout,
    describe,
)
from wts.exact import check_exact_weights
from wts.heads import MarkovHead
from wts.noise import Noise
from wts.pack import PackedHead, pack_head
from wts.plan import EXACT_SOURCE_WORDS, ResidencyPlan
from wts.reference import reference_walk
from wts.weights import DTYPE_OF, weights_of, with_weights

__all__ = ["Backend", "WalkReport", "Walker"]

logger = logging.getLogger("wts")

Backend = Literal["device", "emulator", "reference"]
_FIRST_SEQUENCE = 2  # so that a cleared slot, whose tag is 0, is nobody's word
_CLEARED = (_FIRST_SEQUENCE, 0, 0, 0)  # sequence and error; the counters behind them stay
_STATUS_WORDS = 8
# The kernel counts polls of about 0.2 us in 32 bits; a limit has to end before they wrap.
_LONGEST_TIMEOUT_MS = 600_000


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
    ) -> None:
        if backend not in ("auto", "device", "emulator", "reference"):
            raise InputError(
                "backend: wanted 'auto', 'device', 'emulator' or 'reference', "
                f"found {backend!r}; name one of them"
            )
        is_int = isinstance(timeout_ms, int) and not isinstance(timeout_ms, bool)
        if not is_int or not 1 <= timeout_ms <= _LONGEST_TIMEOUT_MS:
            raise InputError(
                f"timeout_ms: wanted an integer from 1 to {_LONGEST_TIMEOUT_MS}, "
                f"found {timeout_ms!r}; give a limit in milliseconds"
            )
        _check_plan(head, plan)
        _check_exact(plan, exact)
        _check_sharing(head, sharing)
        self._shares = bool(sharing)
        for other in sharing:
            other._shares = True
        self.head: AnyHead = head
        self.plan = plan
        self.backend: Backend
        self._device_walk: _DeviceWalk | None = None
        self._emulator: Emulator | None = None
        self._reference: AnyHead | None = None
        self._clamped = 0
        if backend in ("auto", "device"):
            try:
                self._device_walk = _DeviceWalk(
                    head, plan, _cuda_device(device), timeout_ms, done=_packed_of(sharing)
                )
                self.backend = "device"
                self.plan = self._device_walk.plan
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
            packed = pack_head(head, plan, torch.device("cpu"), done=_packed_of(sharing))
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
        self._check_inputs(base_logits, anchor, out)
        self._check_hidden(base_logits, hidden)
        self._check_sampling(base_logits, temperatures, noise, logits_out)
        if self._device_walk is not None:
            batch, steps, _ = base_logits.shape
            if out is None:
                out = torch.empty(batch, steps, dtype=torch.int64, device=base_logits.device)
            self._device_walk.launch(
                base_logits,
                anchor,
                out,
                hidden=hidden,
                temperatures=temperatures,
                noise=noise,
                logits_out=logits_out,
            )
            return out
        if self._emulator is not None:
            tokens, clamped = self._emulator.walk(
                base_logits.cpu(),
                anchor.cpu(),
                hidden_part=self._emulator.packed.hidden_part(
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
        _check_kind(head, self.head)
        _check_plan(head, self.plan)
        _check_shapes(head, self.head)

    def _refresh(self, head: AnyHead, done: Sequence[Walker]) -> None:
        """Take changed weights, but what others that were refreshed already have packed."""
        self._check_refresh(head)
        packed = self.packed
        if packed is None:
            self._reference = with_weights(head, torch.clone)
        else:
            device = packed.tiles.device
            packed = pack_head(head, self.plan, device, into=packed, done=_packed_of(done))
            if self._device_walk is not None:
                self._device_walk.take(packed)
            else:
                self._emulator = Emulator(plan=self.plan, packed=packed)
        self.head = head

    @property
    def packed(self) -> PackedHead | None:
        """The packed weights; None on the reference backend, which has plain ones."""
        if self._device_walk is not None:
            return self._device_walk.packed
        return None if self._emulator is None else self._emulator.packed

    def check(self) -> None:
        """Wait for the walks so far and raise if one was given up.

        Raises:
            WalkTimeout: says which block waited for which, and at which step. The workspace is
                cleared, so the next walk starts afresh.
        """
        if self._device_walk is not None:
            self._device_walk.check()

    def report(self) -> WalkReport:
        """Wait for the walks so far and say what they noticed."""
        if self._device_walk is not None:
            # Counted in 32 bits without a sign, which torch reads with one.
            clamped, steps, rows = (n & 0xFFFFFFFF for n in self._device_walk.read_status()[4:7])
            return WalkReport(clamped_anchors=clamped, rescored_steps=steps, rescored_rows=rows)
        return WalkReport(clamped_anchors=self._clamped)

    @property
    def memory_bytes(self) -> int:
        """Bytes this Walker holds beyond the head it was given."""
        if self._device_walk is not None:
            return self._device_walk.memory_bytes
        if self._emulator is not None:
            return self._emulator.packed.memory_bytes
        assert self._reference is not None
        return sum(weight.nbytes for weight in weights_of(self._reference).values())

    def _check_inputs(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        out: torch.Tensor | None,
    ) -> None:
        plan = self.plan
        dtype = DTYPE_OF[plan.base_type]
        device = None if self._device_walk is None else self._device_walk.device
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
        fits = (
            base_logits.ndim == 3
            and 1 <= base_logits.shape[0] <= plan.batch
            and 1 <= base_logits.shape[1] <= plan.steps
            and base_logits.shape[2] >= plan.vocab
        )
        if not fits:
            raise InputError(
                f"base_logits: wanted [1..{plan.batch}, 1..{plan.steps}, at least {plan.vocab}], "
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

    def _check_hidden(self, base_logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        size = self.head.hidden_size
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

    def _check_sampling(
        self,
        base_logits: torch.Tensor,
        temperatures: torch.Tensor | None,
        noise: Noise | None,
        logits_out: torch.Tensor | None,
    ) -> None:
        plan, device = self.plan, base_logits.device
        batch, steps = base_logits.shape[:2]
        if not plan.sampled:
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
        dtype = DTYPE_OF[plan.step_type]
        if logits_out is not None and (
            logits_out.dtype != dtype
            or logits_out.ndim != 3
            or tuple(logits_out.shape[:2]) != (batch, steps)
            or logits_out.shape[2] < plan.vocab
            or (logits_out.shape[2] > 1 and logits_out.stride(2) != 1)
            or any(logits_out.stride(i) == 0 and logits_out.shape[i] > 1 for i in (0, 1))
            or logits_out.device != device
        ):
            raise InputError.mismatch(
                "logits_out",
                wanted=f"{dtype}[{batch}, {steps}, at least {plan.vocab}] on {device}, "
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


def _check_kind(head: AnyHead, first: AnyHead) -> None:
    """Refuse another kind of head than the first one."""
    if isinstance(head, get_args(AnyHead)) and type(head) is not type(first):
        raise HeadError.mismatch(
            "head",
            wanted=f"a {type(first).__name__}, as this Walker was made with",
            found=type(head).__name__,
            fix="make a new Walker for it",
        )


def _check_shapes(head: AnyHead, first: AnyHead) -> None:
    """Refuse weights of other shapes than the first head's."""
    if isinstance(head, MarkovHead):
        return  # whose plan names every size
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


def _check_plan(head: AnyHead, plan: ResidencyPlan) -> None:
    if not isinstance(head, get_args(AnyHead)):
        names = [kind.__name__ for kind in get_args(AnyHead)]
        raise HeadError.mismatch(
            "head",
            wanted=f"a {', '.join(names[:-1])} or {names[-1]}",
            found=type(head).__name__,
            fix="build one of its weights, or with from_checkpoint(folder)",
        )
    if not isinstance(plan, ResidencyPlan):
        raise PlanError.mismatch(
            "plan",
            wanted="a ResidencyPlan",
            found=type(plan).__name__,
            fix="make it with plan_residency(head, ...)",
        )
    mapped = head.draft_to_target is not None
    step_dtype = torch.promote_types(DTYPE_OF[plan.base_type], head.table.dtype)
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
    planned = (
        plan.kind,
        plan.state,
        plan.hidden,
        plan.vocab,
        plan.rank,
        plan.table_rows,
        plan.mapped,
    )
    found = (*planned, DTYPE_OF[plan.step_type])
    types = (head.projection.dtype, head.table.dtype)
    if plan.weights == "bf16" and types != (torch.bfloat16, torch.bfloat16):
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
    if plan.exact:
        check_exact_weights(head)


def _check_exact(plan: ResidencyPlan, exact: bool | None) -> None:
    if exact is not None and exact is not plan.exact:
        raise PlanError.mismatch(
            "exact",
            wanted=f"{plan.exact}, as planned, or None",
            found=repr(exact),
            fix=f"plan with plan_residency(head, ..., exact={bool(exact)})",
        )


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
    return [walker.packed for walker in walkers if walker.packed is not None]


# ---- the device --------------------------------------------------------------------------------


def _cuda_device(device: str | torch.device | None) -> torch.device:
    if not torch.cuda.is_available():
        raise DeviceError(
            "device: wanted a CUDA device, found none that torch can use; "
            "pass backend='emulator', or run on a machine with a Hopper GPU (or Blackwell)"
        )
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise DeviceError(f"device: wanted a CUDA device, found {chosen}; pass 'cuda' or 'cuda:0'")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    return torch.device("cuda", index)


def _driver_call(result: tuple[Any, ...], doing: str) -> Any:
    """Unpack what cuda.bindings returns; raise where the driver refused."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError.mismatch(
            doing,
            wanted="success",
            found=f"{error.name} from the driver",
            fix="see whether another program holds this GPU, and what wts doctor says",
        )
    return values[0] if values else None


def multiply_hidden(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """What hidden states add to inner sums: a library's product, sums in fp32 in its order.

    Args:
        hidden: bf16 [n, H].
        weight: bf16 [rows, H].
        bias: [rows], or None.
        out: fp32 [n, rows].
    """
    torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
    if bias is not None:
        out.add_(bias)


class _DeviceWalk:
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
        done: Sequence[PackedHead] = (),
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
            self.take(pack_head(head, plan, device, done=done))
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
        self._context = _driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        self._code = ObjectCode.from_cubin(cubin)
        self._kernel = self._code.get_kernel(KERNEL_NAME)
        self._function = driver.CUfunction(int(self._kernel.handle))
        attribute = driver.CUfunction_attribute
        _driver_call(
            driver.cuKernelSetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self.plan.shared_bytes,
                driver.CUkernel(int(self._kernel.handle)),
                driver.CUdevice(self.device.index),
            ),
            "setting the kernel's shared memory",
        )
        per_sm = _driver_call(
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
    def memory_bytes(self) -> int:
        workspace = [self.slots, self.status, self._cleared]
        workspace += [self.state_slots, self.part, self._hidden, self.source, self.exact_slots]
        return self.packed.memory_bytes + sum(tensor.nbytes for tensor in workspace)

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
    ) -> None:
        """Launch one walk on the current stream."""
        from cuda.bindings import driver

        packed = self.packed
        mapping = packed.draft_to_target
        if hidden is not None:
            hidden = self._prepare_hidden(hidden)
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
            hidden_part=None if hidden is None else self.part.data_ptr(),
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
            _driver_call(
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
            multiply_hidden(rows, weight, self.packed.cell.hidden_bias, part)
        return hidden

    @contextmanager
    def _current_context(self) -> Iterator[None]:
        """The context of this GPU: a new thread has none yet, and torch may be on another GPU."""
        from cuda.bindings import driver

        current = _driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        if current == self._context:
            yield
            return
        _driver_call(driver.cuCtxPushCurrent(self._context), "entering the context")
        try:
            yield
        finally:
            _driver_call(driver.cuCtxPopCurrent(), "leaving the context")

    def read_status(self) -> list[int]:
        torch.cuda.synchronize(self.device)
        return cast("list[int]", self.status.cpu().tolist())

    def check(self) -> None:
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
