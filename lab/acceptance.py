"""Does int8 change the accepted length? `python -m lab.acceptance DATA MODELS OUT`.

Held-out prompts of several domains are continued twice, with the bf16 head and with the int8 walk,
and compared prompt by prompt: greedy and sampled. The accepted length of a run is tokens per round
over all its prompts. Its 95 % interval comes from a bootstrap that draws whole prompts, since the
rounds of one prompt are alike. The int8 walk also drafts at every state of the bf16 run, with the
same random numbers: this compares the two at equal states, round by round, and is the sharper one
where sampled texts soon differ. So does the exact walk, greedily: as long as it drafts the same
tokens at every state, its run is the bf16 head's, prompt by prompt.

The verifier is this project's own loop. On a GPU the int8 walk is the kernel's, on a CPU the
emulator's, which has the same tokens bit for bit (heads that read hidden states: given the same
product). OUT gets acceptance.json, a figure of it (`lab.draw`), and on a GPU records for
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lab.checkpoints import drafters_in, load_drafter, load_head, load_target
from lab.data import DOMAINS, Tokens, read_tokens
from lab.drafter import Drafter
from lab.draw import draw_below
from lab.generate import Block, Generated, Walk, generate
from lab.target import Target
from wts.bench import record
from wts.errors import InputError
from wts.hardware.gpu import GPUS, LOCAL
from wts.heads.base import Head
from wts.kernels.packed import PackedHead
from wts.kernels.planner import plan_residency
from wts.numerics.exact_bounds import exact_logits
from wts.numerics.gumbel import Noise
from wts.numerics.order import select_greedy
from wts.numerics.torch_dtypes import NUMBER_TYPE_OF
from wts.progress import progress_printer
from wts.walk.reference import exact_walk, reference_walk
from wts.walk.walker import Walker

__all__ = ["PER_DOMAIN", "Estimate", "Prompt", "by_domain", "compare", "draw_prompts", "estimate"]

_MOST_REQUESTS = 64
PER_DOMAIN = 96  # prompts, by default: of four domains six full batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The beginning of a held-out document."""

    domain: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Accepted lengths of two runs over the same prompts.

    Args:
        prompts: how many.
        first, second: tokens per round of the bf16 head and of the int8 walk.
        difference: second less first.
        low, high: 95 % interval of the difference.
    """

    prompts: int
    first: float
    second: float
    difference: float
    low: float
    high: float


def draw_prompts(
    tokens: Tokens, *, per_domain: int, shortest: int, longest: int, seed: int
) -> list[Prompt]:
    """Beginnings of held-out files, of each domain as many as there are, at most `per_domain`.

    Args:
        tokens: the validation side.
        per_domain: prompts of a domain.
        shortest, longest: tokens of a prompt, drawn evenly; a file has to have at least twice
            `shortest`.
        seed: of the draw.
    """
    generator = np.random.default_rng(seed)
    ends = np.append(tokens.starts[1:], len(tokens.ids))
    found = []
    for number, domain in enumerate(DOMAINS):
        long_enough = ends - tokens.starts > 2 * shortest
        files = np.flatnonzero((tokens.domains == number) & long_enough)
        for file in generator.permutation(files)[:per_domain]:
            most = min(longest, int(ends[file] - tokens.starts[file]) - 1)
            length = int(generator.integers(shortest, most + 1))
            start = int(tokens.starts[file])
            ids = tuple(tokens.ids[start : start + length].tolist())
            found.append(Prompt(domain=domain, tokens=ids))
    return found


def estimate(
    first: Sequence[tuple[int, int]],
    second: Sequence[tuple[int, int]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Compare accepted lengths, prompt by prompt.

    Args:
        first, second: tokens and rounds of each prompt, in the same order.
        resamples: of the bootstrap; each draws as many prompts as there are, with replacement.
        seed: of its draws.
    """
    one, other = np.array(first, np.float64), np.array(second, np.float64)
    count = len(one)
    generator = np.random.default_rng(seed)
    differences = []
    for begin in range(0, resamples, 1000):
        size = min(1000, resamples - begin)
        times = generator.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        differences.append(_ratio(times @ other) - _ratio(times @ one))
    low, high = np.quantile(np.concatenate(differences), [0.025, 0.975])
    lengths = [float(_ratio(side.sum(0)[None])[0]) for side in (one, other)]
    return Estimate(
        prompts=count,
        first=lengths[0],
        second=lengths[1],
        difference=lengths[1] - lengths[0],
        low=float(low),
        high=float(high),
    )


def by_domain(
    domains: Sequence[str],
    first: Sequence[tuple[int, int]],
    second: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """An `Estimate`, as a dictionary, of "all" prompts and of those of each domain.

    Args:
        domains: of each prompt.
        first, second: as for `estimate`.
    """
    found = {}
    for domain in ("all", *dict.fromkeys(domains)):
        rows = [i for i, name in enumerate(domains) if domain in ("all", name)]
        found[domain] = asdict(estimate([first[i] for i in rows], [second[i] for i in rows]))
    return found


def _ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    ratio: npt.NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return ratio


# ---- the two walks -----------------------------------------------------------------------------


def bf16_walk(head: Head) -> Walk:
    """The formula of the unquantised head, where the head is."""

    def walk(
        block: Block,
        temperatures: torch.Tensor | None,
        noise: Noise | None,
        logits_out: torch.Tensor | None,
    ) -> torch.Tensor:
        with block.base_logits.device:  # its random words too
            return reference_walk(
                head,
                block.base_logits,
                block.anchor,
                hidden=None if head.hidden_size is None else block.hidden.bfloat16(),
                temperatures=temperatures,
                noise=noise,
                logits_out=logits_out,
            )

    return walk


def int8_walk(head: Head, *, batch: int, steps: int, sampled: bool, kind: torch.dtype) -> Walk:
    """The package's walk: on the GPU that the head is on, or the emulator's."""
    walker = _walker(head, batch=batch, steps=steps, sampled=sampled, kind=kind, exact=False)
    return partial(_walked, walker)


def _walker(
    head: Head, *, batch: int, steps: int, sampled: bool, kind: torch.dtype, exact: bool
) -> Walker:
    on_gpu = head.table.is_cuda
    plan = plan_residency(
        head,
        LOCAL if on_gpu else GPUS["h200"],
        batch=batch,
        steps=steps,
        sampled=sampled,
        base_type=NUMBER_TYPE_OF[kind],
        exact=exact,
    )
    return Walker(head, plan, backend="device" if on_gpu else "emulator")


def _walked(
    walker: Walker,
    block: Block,
    temperatures: torch.Tensor | None,
    noise: Noise | None,
    logits_out: torch.Tensor | None,
) -> torch.Tensor:
    tokens = walker(
        block.base_logits,
        block.anchor,
        hidden=None if walker.head.hidden_size is None else block.hidden.bfloat16(),
        temperatures=temperatures,
        noise=noise,
        logits_out=logits_out,
    )
    walker.check()
    return tokens


class ExactBeside:
    """An exact walk and the bf16 head's, which drafts the same blocks after it.

    The bf16 head's sums are made in a library's order, and where two logits are a rounding apart
    that order can decide. So blocks with other tokens are walked again in the order of the
    contract: by the formula itself. Latents that need the GPU's sums of the hidden states are made
    of them as the emulator makes them, on the CPU; the logits of all rows, which would take it
    minutes, where the head is: their order of sums is the same everywhere.

    Args:
        walker: exact.
        first: the bf16 head's walk.

    `tokens` are those of the last exact walk. `wrong` counts the blocks of requests that are not
    done in which the formula has other tokens than the exact walk.
    """

    def __init__(self, walker: Walker, first: Walk) -> None:
        if not walker.plan.request.exact:
            raise InputError(f"walker: wanted an exact one, found plan {walker.plan.hash}")
        self._walker = walker
        self._first = first
        self._packed: PackedHead | None = None
        self.tokens: torch.Tensor | None = None
        self.wrong = 0

    def exact(self, block: Block, *given: Any) -> torch.Tensor:
        """The exact walk."""
        self.tokens = _walked(self._walker, block, *given)
        return self.tokens

    def bf16(self, block: Block, *given: Any) -> torch.Tensor:
        """The bf16 head's walk of a block that `exact` has just walked."""
        tokens = self._first(block, *given)
        assert self.tokens is not None
        unlike = (tokens != self.tokens).any(1)
        if block.active is not None:
            unlike &= block.active
        rows = unlike.nonzero()[:, 0]
        if len(rows):
            self.wrong += int((self._formula(block, rows) != self.tokens[rows]).any(1).sum())
        return tokens

    def _formula(self, block: Block, rows: torch.Tensor) -> torch.Tensor:
        """Tokens [n, K] of some requests, int64 [n], of the block that `exact` has walked last."""
        head = self._walker.head
        base, prev = block.base_logits[rows], block.anchor[rows]
        if head.latents_are_rows:
            return exact_walk(head, base, prev)
        if self._packed is None:
            self._packed = self._walker.twin().packed
        term = self._walker.hidden_term()
        assert term is not None
        term = term[rows.cpu()]
        state = self._packed.initial_state(len(rows))
        tokens = []
        for step in range(base.shape[1]):
            state, latent = self._packed.exact_latent(state, prev.cpu(), term[:, step])
            logits = exact_logits(
                head.projection[: head.vocab],
                base[:, step, : head.vocab],
                None if latent is None else latent.to(base.device),
            )
            chosen = select_greedy(logits)
            prev = chosen if head.draft_to_target is None else head.draft_to_target[chosen]
            tokens.append(prev)
        return torch.stack(tokens, 1)


# ---- the experiment ----------------------------------------------------------------------------


def _all(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    walk: Walk,
    shadows: Sequence[Walk],
    *,
    batch: int,
    new_tokens: int,
    temperature: float,
    seed: int,
) -> list[Generated]:
    found = []
    for first in range(0, len(prompts), batch):
        some = prompts[first : first + batch]
        found += generate(
            target,
            drafter,
            [prompt.tokens for prompt in some],
            walk,
            new_tokens=new_tokens,
            temperature=temperature,
            seed=seed + first,
            shadows=shadows,
        )
    return found


def compare(
    target: Target,
    drafter: Drafter,
    head: Head,
    prompts: Sequence[Prompt],
    *,
    new_tokens: int,
    temperature: float,
    seed: int = 0,
    batch: int = _MOST_REQUESTS,
) -> dict[str, Any]:
    """Continue prompts with both walks.

    Args:
        target: loaded.
        drafter: loaded.
        head: the drafter's, on the same device.
        prompts: to continue.
        new_tokens: of each.
        temperature: 0 is greedy.
        seed: of all random numbers.
        batch: requests at once.

    Returns:
        `domains`: an `Estimate` for each domain and for "all", as dictionaries; `same_states`: the
        same at equal states, those of the bf16 run; `same_text`: share of prompts whose two texts
        are equal; `per_prompt`: domain and, of both walks, tokens and rounds. Of greedy runs in
        bf16 also `exact`: of the exact walk at the same states the `domains`, how many `prompts`
        have another accepted length, and of all `blocks` how many have
        other tokens (`unlike`), and how many of those the order of sums does not explain (`wrong`).
    """
    kind, steps = target.embed_tokens.weight.dtype, drafter.shape.steps
    batch = min(batch, len(prompts))
    sampled = temperature > 0
    first_walk = bf16_walk(head)
    second_walk = int8_walk(head, batch=batch, steps=steps, sampled=sampled, kind=kind)
    shadows: list[Walk] = [second_walk]
    beside = None
    if not sampled and kind == torch.bfloat16:
        walker = _walker(head, batch=batch, steps=steps, sampled=False, kind=kind, exact=True)
        beside = ExactBeside(walker, first_walk)
        shadows, first_walk = [second_walk, beside.exact], beside.bf16

    def run(walk: Walk, shadows: Sequence[Walk] = ()) -> list[Generated]:
        return _all(
            target, drafter, prompts, walk, shadows,
            batch=batch, new_tokens=new_tokens, temperature=temperature, seed=seed,
        )  # fmt: skip

    one = run(first_walk, shadows)
    other = run(second_walk)
    domains = [prompt.domain for prompt in prompts]

    first = [(x.committed, x.rounds) for x in one]
    second = [(x.committed, x.rounds) for x in other]
    result: dict[str, Any] = {
        "temperature": temperature,
        "domains": by_domain(domains, first, second),
        "same_text": sum(a.tokens == b.tokens for a, b in zip(one, other, strict=True)) / len(one),
        "per_prompt": [
            {"domain": d, "bf16": [a.committed, a.rounds], "int8": [b.committed, b.rounds]}
            for d, a, b in zip(domains, one, other, strict=True)
        ],
    }
    result["same_states"] = by_domain(domains, first, [(x.shadowed[0], x.rounds) for x in one])
    if beside is not None:
        result["exact"] = {
            "domains": by_domain(domains, first, [(x.shadowed[1], x.rounds) for x in one]),
            "prompts": sum(x.shadowed[1] != x.committed for x in one),
            "blocks": sum(x.rounds for x in one),
            "unlike": sum(x.unlike[1] for x in one),
            "wrong": beside.wrong,
        }
    return result


def records(
    result: dict[str, Any],
    environment: record.Environment,
    head: Head,
    *,
    batch: int,
    steps: int,
    run_id: str,
) -> list[record.Record]:
    """Records of a comparison on a GPU, one for each domain: of own runs, and at equal states."""
    exact = result.get("exact")
    found = [("wts", result["domains"], {"states": "own"})]
    found.append(("wts", result["same_states"], {"states": "same"}))
    if exact is not None:
        counts = {"blocks": exact["blocks"], "unlike_blocks": exact["unlike"]}
        found.append(("wts_exact", {"all": exact["domains"]["all"]}, {"states": "same", **counts}))
    return [
        record.build(
            environment,
            bench="acceptance",
            run_id=run_id,
            path=path,
            head=head.kind,
            weights="int8",
            V=head.vocab,
            r=head.rank,
            B=batch,
            K=steps,
            T=float(result["temperature"]),
            inputs="recorded",
            prompts=one["prompts"],
            accepted_length_a=one["first"],
            accepted_length_b=one["second"],
            difference=one["difference"],
            ci_low=one["low"],
            ci_high=one["high"],
            domain=domain,
            **more,
        )
        for path, domains, more in found
        for domain, one in domains.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.acceptance", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="what lab.data wrote")
    parser.add_argument("models", type=Path, help="what lab.run wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafter", action="append", metavar="NAME", help="all by default")
    parser.add_argument("--per-domain", type=int, default=PER_DOMAIN, help="prompts of each domain")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, nargs=2, default=(32, 128), help="shortest, longest")
    parser.add_argument("--temperature", type=float, action="append", help="0 and 1 by default")
    parser.add_argument("--commit", help="git describe --always --dirty, where there is no git")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fp32", action="store_true", help="products in fp32, for tiny models")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    say = progress_printer()

    device = torch.device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    prompts = draw_prompts(
        read_tokens(args.data / "val.npz"),
        per_domain=args.per_domain,
        shortest=args.prompt[0],
        longest=args.prompt[1],
        seed=args.seed,
    )
    counts = Counter(prompt.domain for prompt in prompts)
    say(f"{len(prompts)} prompts: " + ", ".join(f"{domain} {n}" for domain, n in counts.items()))
    target = load_target(args.models / "target", device)
    names = args.drafter or drafters_in(args.models)
    environment = None
    if device.type == "cuda":
        environment = record.capture_environment(described=args.commit)
    run_id = record.new_run_id()
    results: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        drafter = load_drafter(args.models / name, device)
        if args.fp32:
            target.float()
            drafter.float()
        head = load_head(args.models, name, device)
        for temperature in args.temperature or (0.0, 1.0):
            result = compare(
                target, drafter, head, prompts,
                new_tokens=args.new_tokens, temperature=temperature, seed=args.seed,
            )  # fmt: skip
            results.setdefault(name, []).append(result)
            found, same = result["domains"]["all"], result["same_states"]["all"]
            say(
                f"{name} T={temperature:g}: bf16 {found['first']:.4f}, int8 {found['second']:.4f}, "
                f"difference {found['difference']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"
                f"; at equal states {same['difference']:+.4f} [{same['low']:+.4f}, "
                f"{same['high']:+.4f}]"
            )
            if exact := result.get("exact"):
                say(
                    f"{name}, exact walk: {exact['prompts']} prompts with another length; "
                    f"{exact['unlike']} of {exact['blocks']} blocks with other tokens, "
                    f"{exact['wrong']} of them not by the order of sums"
                )
            if environment is not None:
                for line in records(
                    result, environment, head,
                    batch=min(_MOST_REQUESTS, len(prompts)), steps=drafter.shape.steps,
                    run_id=run_id,
                ):  # fmt: skip
                    record.append(args.out / "results", line)
            # Anew each time: a run that is cut short leaves what it has.
            report = {"run_id": run_id, "new_tokens": args.new_tokens, "drafters": results}
            (args.out / "acceptance.json").write_text(json.dumps(report) + "\n")
    draw_below(args.out, say)


if __name__ == "__main__":
    main()
