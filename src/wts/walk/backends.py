"""The three ways to walk, behind one protocol: on the device, as its emulator, as the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

from wts.errors import InputError, PlanError
from wts.heads.base import Head, weights_of, with_weights
from wts.kernels.launch import LoadedKernel, check_each
from wts.kernels.packed import PackedHead, pack_head
from wts.kernels.resident.args import Turn
from wts.kernels.resident.plan import ResidentPlan
from wts.selection.call import Call
from wts.walk.emulator import Emulator
from wts.walk.reference import reference_walk

__all__ = [
    "Backend",
    "BackendName",
    "DeviceBackend",
    "EmulatorBackend",
    "ReferenceBackend",
    "WalkReport",
    "check_backend",
]

BackendName: TypeAlias = Literal["device", "emulator", "reference"]


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


@runtime_checkable
class Backend(Protocol):
    """What a Walker walks on. It holds the weights, and whatever else walks leave behind."""

    @property
    def name(self) -> BackendName:
        """Which one it is."""

    @property
    def plan(self) -> ResidentPlan:
        """The plan that it walks under."""

    @property
    def greedy_plan(self) -> ResidentPlan | None:
        """The plan of batches without a sampled row, if they have one of their own."""

    @property
    def device(self) -> torch.device | None:
        """Where the tensors of a call have to be; None: anywhere."""

    @property
    def kernels(self) -> Sequence[LoadedKernel]:
        """What a call launches, that of `plan` first; none but on the device."""

    @property
    def packs(self) -> list[PackedHead]:
        """All packed weights, which may share tensors, those of `plan` first."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside packed weights and the head."""

    def walk(self, call: Call, out: torch.Tensor | None) -> torch.Tensor:
        """Draft a block: int64 [B, K] where the call's tensors are, in `out` if there is one."""

    def hidden_term(self, batch: int, steps: int) -> torch.Tensor:
        """What hidden states added to each step of the last walk, of B = `batch`, K = `steps`.

        Returns:
            fp32 [B, K, P] on the CPU.

        Raises:
            InputError: there are no packed weights, so that nothing was added.
        """

    def refresh(self, head: Head, share_with: Sequence[PackedHead]) -> None:
        """Take changed weights, but what has been packed of them in `share_with` already."""

    def check(self) -> None:
        """Wait for the walks so far; WalkTimeout, once all is cleared, if one was given up."""

    def report(self) -> WalkReport:
        """Wait for the walks so far and say what they noticed."""


def check_backend(backend: object, plan: ResidentPlan) -> None:
    """Refuse a name that is no backend's (InputError), or a backend of another plan (PlanError)."""
    if isinstance(backend, Backend):
        if backend.plan != plan:
            raise PlanError.mismatch(
                "plan",
                wanted=f"that of the backend, {backend.plan.hash}",
                found=plan.hash,
                fix="pass backend.plan",
            )
    elif backend not in ("auto", "device", "emulator", "reference"):
        raise InputError(
            "backend: wanted 'auto', 'device', 'emulator' or 'reference', "
            f"found {backend!r}; name one of them"
        )


class DeviceBackend:
    """Kernels on a GPU.

    Args:
        kernel: of the plan.
        greedy: beside a kernel whose plan is sampled: that of a greedy plan for the same walks, on
            the same GPU. A call launches both, and one leaves at once, by the temperatures.
    """

    name: BackendName = "device"

    def __init__(self, kernel: LoadedKernel, greedy: LoadedKernel | None = None) -> None:
        self._kernel = kernel
        self._greedy = greedy
        self.kernels = (kernel,) if greedy is None else (kernel, greedy)

    @classmethod
    def load(
        cls,
        head: Head,
        plan: ResidentPlan,
        device: torch.device,
        timeout_ms: int,
        *,
        greedy_plan: ResidentPlan | None,
        share_with: Sequence[PackedHead],
    ) -> DeviceBackend:
        """Compile and load what a plan, and perhaps a greedy one, need; see `LoadedKernel`."""
        kernel = LoadedKernel(head, plan, device, timeout_ms, share_with=share_with)
        if greedy_plan is None:
            return cls(kernel)
        packed = [*share_with, kernel.packed]
        greedy = LoadedKernel(head, greedy_plan, kernel.device, timeout_ms, share_with=packed)
        return cls(kernel, greedy)

    @property
    def plan(self) -> ResidentPlan:
        """The plan that it walks under."""
        return self._kernel.plan

    @property
    def greedy_plan(self) -> ResidentPlan | None:
        """The plan of batches without a sampled row, if they have one of their own."""
        return None if self._greedy is None else self._greedy.plan

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._kernel.device

    @property
    def packs(self) -> list[PackedHead]:
        """All packed weights."""
        return [kernel.packed for kernel in self.kernels]

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside packed weights."""
        return sum(kernel.workspace_bytes for kernel in self.kernels)

    def walk(self, call: Call, out: torch.Tensor | None) -> torch.Tensor:
        """Launch a walk, on the current stream; tokens are there when the stream is."""
        if out is None:
            shape, device = (call.batch, call.steps), call.base_logits.device
            out = torch.empty(shape, dtype=torch.int64, device=device)
        kernel, greedy = self._kernel, self._greedy
        if greedy is None:
            kernel.launch(call, out)
            return out
        kernel.launch(call, out, turn=Turn.ANY_SAMPLED)
        term = None
        if greedy.takes_hidden_term_of(kernel):
            term = kernel.hidden_term(call.batch, call.steps)
        greedy_call = replace(call, logits_out=None)
        greedy.launch(greedy_call, out, turn=Turn.ALL_GREEDY, hidden_term=term)
        return out

    def hidden_term(self, batch: int, steps: int) -> torch.Tensor:
        """What the kernel of `plan` was given, or made itself: copied to the CPU."""
        return self._kernel.hidden_term(batch, steps).cpu()

    def refresh(self, head: Head, share_with: Sequence[PackedHead]) -> None:
        """Pack changed weights in place, on the current stream."""
        packed = list(share_with)
        for kernel in self.kernels:
            fresh = pack_head(
                head, kernel.plan, kernel.device, into=kernel.packed, share_with=packed
            )
            kernel.take(fresh)
            packed.append(fresh)

    def check(self) -> None:
        """Wait for the walks so far; WalkTimeout, once all is cleared, if one was given up."""
        check_each(self.kernels)

    def report(self) -> WalkReport:
        """Wait for the walks so far and say what they noticed."""
        found = [kernel.read_status() for kernel in self.kernels]
        names = [field.name for field in fields(WalkReport)]
        return WalkReport(**{n: sum(one[n] for one in found) & 0xFFFFFFFF for n in names})


class EmulatorBackend:
    """The device's arithmetic on packed bytes, on the CPU.

    Args:
        emulator: of a plan and its packed weights.
    """

    name: BackendName = "emulator"
    greedy_plan: ResidentPlan | None = None
    device: torch.device | None = None
    kernels: Sequence[LoadedKernel] = ()
    workspace_bytes = 0

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._term: torch.Tensor | None = None
        self._clamped = 0

    @classmethod
    def pack(
        cls, head: Head, plan: ResidentPlan, share_with: Sequence[PackedHead]
    ) -> EmulatorBackend:
        """Pack a head for a plan, on the CPU."""
        packed = pack_head(head, plan, torch.device("cpu"), share_with=share_with)
        return cls(Emulator(plan=plan, packed=packed))

    @property
    def plan(self) -> ResidentPlan:
        """The plan that it walks under."""
        return self._emulator.plan

    @property
    def packs(self) -> list[PackedHead]:
        """The packed weights."""
        return [self._emulator.packed]

    def walk(self, call: Call, out: torch.Tensor | None) -> torch.Tensor:
        """Draft a block on the CPU."""
        hidden, temperatures = call.hidden, call.temperatures
        self._term = self._emulator.packed.hidden_term(None if hidden is None else hidden.cpu())
        tokens, clamped = self._emulator.walk(
            call.base_logits.cpu(),
            call.anchor.cpu(),
            hidden_term=self._term,
            temperatures=None if temperatures is None else temperatures.cpu(),
            noise=call.noise,
            logits_out=call.logits_out,
        )
        self._clamped += clamped
        return _given(tokens, call, out)

    def hidden_term(self, batch: int, steps: int) -> torch.Tensor:
        """What the emulator was given."""
        assert self._term is not None
        assert self._term.shape[:2] == (batch, steps)
        return self._term

    def refresh(self, head: Head, share_with: Sequence[PackedHead]) -> None:
        """Pack changed weights in place."""
        plan, packed = self._emulator.plan, self._emulator.packed
        fresh = pack_head(head, plan, torch.device("cpu"), into=packed, share_with=share_with)
        self._emulator = Emulator(plan=plan, packed=fresh)

    def check(self) -> None:
        """Nothing is given up on the CPU."""

    def report(self) -> WalkReport:
        """What walks noticed."""
        return WalkReport(clamped_anchors=self._clamped)


class ReferenceBackend:
    """The formula of the unquantised head, where its weights are.

    Args:
        head: the head, whose weights are copied.
        plan: what calls are checked against; it decides no token.
    """

    name: BackendName = "reference"
    greedy_plan: ResidentPlan | None = None
    device: torch.device | None = None
    kernels: Sequence[LoadedKernel] = ()
    packs: list[PackedHead]

    def __init__(self, head: Head, plan: ResidentPlan) -> None:
        self.plan = plan
        self.packs = []
        self._head = with_weights(head, torch.clone)
        self._clamped = 0

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the copied weights."""
        return sum(weight.nbytes for weight in weights_of(self._head).values())

    def walk(self, call: Call, out: torch.Tensor | None) -> torch.Tensor:
        """Draft a block where the weights are."""
        device = self._head.projection.device
        anchor, hidden, temperatures = call.anchor, call.hidden, call.temperatures
        clamped = int(((anchor < 0) | (anchor >= self._head.table_rows)).sum())
        tokens = reference_walk(
            self._head,
            call.base_logits.to(device),
            anchor.to(device),
            hidden=None if hidden is None else hidden.to(device),
            temperatures=None if temperatures is None else temperatures.to(device),
            noise=call.noise,
            logits_out=call.logits_out,
        )
        self._clamped += clamped
        return _given(tokens, call, out)

    def hidden_term(self, batch: int, steps: int) -> torch.Tensor:
        """The formula has no packed weights, so that nothing is added apart."""
        raise InputError.mismatch(
            "hidden_term",
            wanted="a Walker with packed weights",
            found="the reference, which multiplies hidden states within its steps",
            fix="ask one with backend='emulator' or 'device'",
        )

    def refresh(self, head: Head, share_with: Sequence[PackedHead]) -> None:
        """Copy changed weights."""
        self._head = with_weights(head, torch.clone)

    def check(self) -> None:
        """Nothing is given up here."""

    def report(self) -> WalkReport:
        """What walks noticed."""
        return WalkReport(clamped_anchors=self._clamped)


def _given(tokens: torch.Tensor, call: Call, out: torch.Tensor | None) -> torch.Tensor:
    """Tokens where the call's tensors are, in `out` if there is one."""
    tokens = tokens.to(call.base_logits.device)
    return tokens if out is None else out.copy_(tokens)
