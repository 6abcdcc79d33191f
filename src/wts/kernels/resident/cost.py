"""What a walk should cost: predicted entry and step times of a plan on a GPU.

A step is a sum of what a block does one after the other: products (tensor units and shared memory,
or what comes from L2, whichever takes longer), judging of sums, and the exchange between blocks.
Groups of requests take turns, so that with several of them exchanges are hidden. The entry is the
launch and the load of all weights; warpgroups also fill their pipeline once.

Every constant is the cost of one thing in one unit. The first five were measured alone
(docs/measured.md); the other eight are fitted to the 72 complete calls of Markov heads in
benchmarks/results/h200/head.jsonl (commit 259403d, L2 cold) by `wts.bench.report.cost_fit`. Over
the points of that fit the mean error is 3.7 %, the largest 16.5 %; constants fitted to one
vocabulary alone miss the other by 4 to 5 %. Nothing is known of errors on other GPUs, of which none
was measured. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from wts.errors import DeviceError
from wts.hardware.gpu import GPUS, GpuSpec, caution_of
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.shard import FRAGMENT_BYTES

__all__ = ["CALIBRATED", "Constants", "Cost", "cost_line", "predict"]

CALIBRATED = "h200"
"""The GPU that the constants were fitted on; a prediction for any other is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Costs of single things. Cycles are of one SM inside a walk; a fragment is of every warp.

    Args:
        clock_share: clock inside a walk, as a share of the peak clock.
        mma_cycles: lone warps' products of a fragment: two warps of a sub-core, 6.02 cycles each.
        bf16_mma_cycles: the same of bf16 weights, 7.1 cycles each.
        wgmma_register_cycles: warpgroups' products of a fragment whose weights are in registers.
        wgmma_shared_cycles: the same where they are in shared memory.
        tensor_cycles: tcgen05's product of a fragment, beside what warps multiply. Assumed: 4 KiB
            of weights at 128 bytes a cycle.
        two_dies_us: what an exchange costs more where the GPU is two dies. Assumed.
        l2_bytes_per_cycle: what L2 gives one SM while all of them ask.
        launch_us: a cold launch, and what a walk does before it loads and after its last step.
        hbm_share: of the peak rate of device memory, while weights are loaded.
        fill_rounds: rounds that warpgroups need before their pipeline is full.
        greedy_judging_cycles: per accumulator of a warp: from sums to the warp's best row.
        lone_sampled_judging_cycles: the same with noise, by warps that multiply alone.
        group_sampled_judging_cycles: the same by warpgroups.
        greedy_exchange_cycles: publish, wait for every block, fetch the next latent.
        sampled_exchange_cycles: the same of sampled rows, whose words are longer.
    """

    clock_share: float = 0.884
    mma_cycles: float = 12.04
    bf16_mma_cycles: float = 14.2
    wgmma_register_cycles: float = 28.4
    wgmma_shared_cycles: float = 41.8
    tensor_cycles: float = 32.0
    two_dies_us: float = 0.175
    l2_bytes_per_cycle: float = 35.0
    launch_us: float = field(default=6.05, metadata={"fitted": True})
    hbm_share: float = field(default=0.695, metadata={"fitted": True})
    fill_rounds: float = field(default=0.424, metadata={"fitted": True})
    greedy_judging_cycles: float = field(default=110.0, metadata={"fitted": True})
    lone_sampled_judging_cycles: float = field(default=345.0, metadata={"fitted": True})
    group_sampled_judging_cycles: float = field(default=579.0, metadata={"fitted": True})
    greedy_exchange_cycles: float = field(default=1509.0, metadata={"fitted": True})
    sampled_exchange_cycles: float = field(default=2215.0, metadata={"fitted": True})

    def fitted(self) -> dict[str, float]:
        """Those that complete calls were fitted with, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("fitted")}

    def with_fitted(self, values: dict[str, float]) -> Constants:
        """The same with other fitted ones."""
        return replace(self, **values)


_SHARED_BYTES_PER_CYCLE = 128  # wavefronts of one SM; lone warps' products do not hide them


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Predicted times of a walk, in us: entry + K x step.

    Args:
        launch_us, load_us, fill_us: parts of the entry.
        product_us: of a step, tensor units and shared memory, all groups.
        stream_us: the part of L2's time that the products do not hide.
        judge_us: of a step, all groups.
        exchange_us: of a step; 0 where groups hide it.
        measured_kind: whether the constants come from this kind of GPU and of weights.
        left_out: what costs extra that is not predicted: latents, exact logits.
        assumptions: what is taken for granted where no walk was ever run, one sentence each.
    """

    launch_us: float
    load_us: float
    fill_us: float
    product_us: float
    stream_us: float
    judge_us: float
    exchange_us: float
    measured_kind: bool
    left_out: tuple[str, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def entry_us(self) -> float:
        """A walk of no steps."""
        return self.launch_us + self.load_us + self.fill_us

    @property
    def step_us(self) -> float:
        """One step more, of all requests."""
        return self.product_us + self.stream_us + self.judge_us + self.exchange_us

    def walk_us(self, steps: int) -> float:
        """A complete call of K steps, L2 cold."""
        return self.entry_us + steps * self.step_us


def predict(plan: ResidentPlan, spec: GpuSpec, constants: Constants | None = None) -> Cost:
    """Predict the times of a plan.

    Args:
        plan: of a head; what latents of heads that read hidden states cost is left out, and what
            exact logits do.
        spec: the GPU that it was made for; unknown rates are those of its kind in `GPUS`.
        constants: the committed ones by default.

    Raises:
        DeviceError: the clock or the rate of device memory is not known.
    """
    given = Constants() if constants is None else constants
    kind = _kind_of(spec)
    known = GPUS.get(kind or "")
    clock_mhz = spec.clock_mhz or (known.clock_mhz if known else 0)
    dram = spec.dram_bytes_per_s or (known.dram_bytes_per_s if known else 0)
    if not clock_mhz or not dram:
        raise DeviceError.mismatch(
            "gpu",
            wanted="a known clock and a known rate of device memory, for a prediction",
            found=f"{spec.name}: {clock_mhz} MHz, {dram} bytes/s",
            fix=f"name a GPU of {', '.join(GPUS)}, or measure with wts bench head",
        )
    cycle_us = 1 / (clock_mhz * given.clock_share)
    load_rate = dram / 1e6 * given.hbm_share  # bytes a us

    away = plan.placement.shared_fragments + plan.placement.streamed_fragments
    fragment_bytes = plan.shard.sweep_warps * FRAGMENT_BYTES
    if plan.product.warpgroups:
        product = (
            given.wgmma_register_cycles * plan.placement.register_fragments
            + given.wgmma_shared_cycles * away
        )
        accumulators = plan.shard.warp_tiles * plan.product.columns / 4
        judging = given.greedy_judging_cycles
        if plan.request.sampled:
            judging = given.group_sampled_judging_cycles
    else:
        mma_cycles = given.mma_cycles if plan.request.quantised else given.bf16_mma_cycles
        product = (
            mma_cycles * (plan.placement.register_fragments + away)
            + fragment_bytes / _SHARED_BYTES_PER_CYCLE * away
        )
        accumulators = plan.product.accumulators
        judging = given.greedy_judging_cycles
        if plan.request.sampled:
            judging = given.lone_sampled_judging_cycles
    streamed = plan.placement.streamed_fragments
    if (
        not plan.request.quantised and plan.product.groups == 1
    ):  # what a ring holds comes while blocks exchange
        streamed -= plan.placement.ring_slots * plan.placement.chunk_fragments
    stream = fragment_bytes * streamed / given.l2_bytes_per_cycle
    exchange = (
        given.sampled_exchange_cycles if plan.request.sampled else given.greedy_exchange_cycles
    )

    judge_us = accumulators * judging * cycle_us
    product_us = product * cycle_us
    stream_us = max(0.0, stream - product) * cycle_us
    if plan.product.tcgen05_tiles:
        asynchronous = given.tensor_cycles * plan.product.tensor_instructions
        product_us = max(product, asynchronous) * cycle_us
    exchange_us = exchange * cycle_us + (given.two_dies_us if caution_of(plan.gpu.arch) else 0.0)
    round_us = product_us + stream_us + judge_us
    return Cost(
        launch_us=given.launch_us,
        load_us=plan.shard.padded_vocab * plan.request.row_bytes / load_rate,
        fill_us=given.fill_rounds * round_us if plan.product.warpgroups else 0.0,
        product_us=plan.product.groups * product_us,
        stream_us=plan.product.groups * stream_us,
        judge_us=plan.product.groups * judge_us,
        exchange_us=exchange_us if plan.product.groups == 1 else 0.0,
        measured_kind=plan.request.quantised
        and kind == CALIBRATED
        and spec.max_blocks == GPUS[CALIBRATED].max_blocks,
        left_out=("latents",) * (plan.request.shape.kind != "markov")
        + ("exact logits",) * plan.request.exact,
        assumptions=_assumptions(plan, given),
    )


def _assumptions(plan: ResidentPlan, given: Constants) -> tuple[str, ...]:
    """What a prediction takes for granted where the kernel was never run."""
    if not caution_of(plan.gpu.arch):
        return ()
    found = [
        f"cycles of an {CALIBRATED} for mma.sync, judging and exchanging; clock and rate of memory "
        "of data sheets, of which a walk gets an H200's shares",
        f"{given.two_dies_us * 1000:.0f} ns more for an exchange between two dies (150 to 200 "
        "expected)",
    ]
    if plan.placement.streamed_fragments:
        found.append(
            f"L2 gives an SM {given.l2_bytes_per_cycle:.0f} bytes a cycle, as measured there"
        )
    if plan.product.tcgen05_tiles:
        found.append(
            f"a product of tcgen05 takes {given.tensor_cycles:.0f} cycles (4 KiB of weights at 128 "
            "bytes a cycle, from either memory) and costs the warps nothing"
        )
    return tuple(found)


def _kind_of(spec: GpuSpec) -> str | None:
    """The name in `GPUS` that a driver's longer name stands for."""
    words = set(spec.name.lower().replace("-", " ").split())
    matching = [name for name in GPUS if set(name.split("-")) <= words]
    return max(matching, key=len, default=None)


def cost_line(cost: Cost, gpu: str, batch: int) -> str:
    """The prediction as one line, for people; below it a line for each assumption."""
    kind = "a measured kind of GPU" if cost.measured_kind else "an estimate, none such was measured"
    extra = f"; what {' and '.join(cost.left_out)} cost is not in it" if cost.left_out else ""
    return (
        f"predicted: entry {cost.entry_us:.1f} us + {cost.step_us:.2f} us a step on {gpu} "
        f"(L2 cold, batch {batch}; {kind}{extra})"
        + "".join(f"\n    assumed: {assumption}" for assumption in cost.assumptions)
    )
