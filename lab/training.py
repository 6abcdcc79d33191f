"""What both training loops share: the budget, the schedule, batches, saving, resuming, the log."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from lab.config import Phase
from lab.data import Tokens

__all__ = ["Batches", "Progress", "Run", "autocast", "optimiser_of", "train"]

_DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of products."""
    return _DTYPE[precision]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Products in bf16 over fp32 weights, or plain fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches:
    """Random windows of a text; the same seed and step give the same ones.

    Args:
        ids: int32 [n] on the CPU.
        sequences: of a batch.
        length: tokens of a sequence.
        seed: of the draw.
        device: where batches go.
    """

    ids: torch.Tensor
    sequences: int
    length: int
    seed: int
    device: torch.device

    @classmethod
    def of(cls, tokens: Tokens, phase: Phase, seed: int, device: torch.device) -> Batches:
        """Batches of a phase. The text goes to the device whole."""
        ids = torch.from_numpy(tokens.ids.astype(np.int32)).to(device)
        return cls(
            ids=ids, sequences=phase.sequences, length=phase.length, seed=seed, device=device
        )

    def generator(self, step: int, purpose: int = 0) -> torch.Generator:
        """Random numbers of one step, on the CPU."""
        return torch.Generator().manual_seed(hash((self.seed, step, purpose)) & (2**62 - 1))

    def at(self, step: int) -> torch.Tensor:
        """int64 [sequences, length + 1]: inputs, and labels one further."""
        most = len(self.ids) - self.length - 1
        starts = torch.randint(0, most + 1, (self.sequences,), generator=self.generator(step))
        index = starts[:, None] + torch.arange(self.length + 1)
        return self.ids[index.to(self.device)].long()


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training is.

    Args:
        step: steps done.
        elapsed_s: seconds spent on them.
    """

    step: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where and how long to train.

    Args:
        folder: for state and log.
        phase: settings.
        steps: an exact number of steps in place of the seconds of the phase, for runs that repeat.
        save_every_s: seconds between saved states.
        log_every: steps between lines of the log.
        say: told what is going on.
    """

    folder: Path
    phase: Phase
    steps: int | None = None
    save_every_s: float = 60.0
    log_every: int = 20
    say: Callable[[str], None] = lambda text: None

    def fraction(self, progress: Progress) -> float:
        """How much of the budget is spent, 0..1."""
        done = (
            progress.elapsed_s / self.phase.budget_s
            if self.steps is None
            else progress.step / self.steps
        )
        return min(1.0, done)

    def learning_rate(self, fraction: float) -> float:
        """Rises to the highest, then falls to a twentieth of it along a cosine."""
        warmup = self.phase.warmup
        if fraction < warmup:
            return self.phase.lr * max(fraction / warmup, 0.01)
        rest = (fraction - warmup) / (1 - warmup)
        return self.phase.lr * (0.05 + 0.95 * (1 + math.cos(math.pi * rest)) / 2)


def optimiser_of(model: nn.Module, phase: Phase) -> torch.optim.AdamW:
    """AdamW; only matrices decay."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in trained if w.ndim > 1], "weight_decay": phase.weight_decay},
        {"params": [w for w in trained if w.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = bool(trained) and trained[0].is_cuda
    return torch.optim.AdamW(groups, lr=phase.lr, betas=(0.9, 0.95), eps=1e-9, fused=fused)


def _state_path(run: Run) -> Path:
    return run.folder / "state.pt"


def save_state(
    run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress
) -> None:
    """Save what `train` needs to go on, in one move."""
    path = _state_path(run)
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "step": progress.step,
        "elapsed_s": progress.elapsed_s,
    }
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def load_state(run: Run, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
    """Go on from a saved state, if there is one."""
    path = _state_path(run)
    if not path.is_file():
        return Progress()
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return Progress(step=state["step"], elapsed_s=state["elapsed_s"])


def train(
    run: Run,
    model: nn.Module,
    losses: Callable[[int, float], tuple[torch.Tensor, dict[str, torch.Tensor]]],
) -> Progress:
    """Train until the budget is spent, from the saved state if there is one.

    Args:
        run: where and how long.
        model: its parameters that require grad are trained.
        losses: of a step number and the fraction done: the loss, and numbers to log.

    Returns:
        How far it came.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    optimiser = optimiser_of(model, run.phase)
    progress = load_state(run, model, optimiser)
    if progress.step:
        run.say(f"going on from step {progress.step}, {progress.elapsed_s:.0f} s")
    clock = _Clock(progress.elapsed_s)
    saved = progress.elapsed_s
    resumed = progress.step > 0
    with (run.folder / "log.jsonl").open("a" if resumed else "w", encoding="utf-8") as log:
        while True:
            progress.elapsed_s = clock.read()
            fraction = run.fraction(progress)
            if fraction >= 1:
                break
            for group in optimiser.param_groups:
                group["lr"] = run.learning_rate(fraction)
            loss, numbers = losses(progress.step, fraction)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            progress.step += 1
            if progress.step % run.log_every == 0:
                numbers = {"loss": loss.detach(), "norm": norm, **numbers}
                _write(log, run, progress, numbers)
            if progress.elapsed_s - saved > run.save_every_s:
                progress.elapsed_s = saved = clock.read()
                save_state(run, model, optimiser, progress)
                clock.leave_out_since(saved)
    save_state(run, model, optimiser, progress)
    return progress


class _Clock:
    """Seconds spent on steps, with those of earlier runs."""

    def __init__(self, before: float) -> None:
        self._zero = time.monotonic() - before

    def read(self) -> float:
        """The seconds so far. Launches run ahead of the GPU, and budgets are its time: waits."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic() - self._zero

    def leave_out_since(self, moment: float) -> None:
        """Do not count what has passed since a reading."""
        self._zero += self.read() - moment


def _write(log: IO[str], run: Run, progress: Progress, numbers: dict[str, torch.Tensor]) -> None:
    line: dict[str, Any] = {"step": progress.step, "elapsed_s": round(progress.elapsed_s, 2)}
    line |= {name: round(float(value), 5) for name, value in numbers.items()}
    log.write(json.dumps(line) + "\n")
    log.flush()
    run.say(" ".join(f"{name} {value}" for name, value in line.items()))
