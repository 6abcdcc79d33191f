"""Cut a sample head out of a trained drafter: `python -m lab.export DATA MODELS OUT`.

A drafter of Qwen's vocabulary is too large to ship. The sample keeps the most frequent tokens: as
its target vocabulary some thousands, numbered anew in the order of their ids, and as its draft
vocabulary the more frequent part of those, with the map `d2t` between the two. Rows are copied as
they are, so that step logits of the tokens that are kept are those of the whole head.

OUT is a drafter folder that the package reads, and beside the weights has recorded.safetensors:
base logits, hidden states, anchors and the true tokens behind them, of held-out files whose tokens
are all kept; sample.json, which says where all this comes from; and, where the merge table of Qwen
is given, texts.json with the text of each token.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lab.checkpoints import drafter_fields, load_drafter, load_target, write_tensors
from lab.data import DOMAINS, Tokens, read_tokens
from lab.drafter import Drafter
from lab.target import Target
from wts.errors import HeadError, InputError

__all__ = ["Kept", "Place", "choose_places", "choose_tokens", "export_sample", "record_blocks"]

Ids = npt.NDArray[np.int64]
_FIRST_ANCHOR = 48  # tokens of context that the target has read at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Which tokens a sample keeps.

    Args:
        target: ascending ids of Qwen [vocab]: token i of the sample is target[i].
        draft: ascending tokens of the sample [draft_vocab]: draft id d is token draft[d].
    """

    target: Ids
    draft: Ids


def choose_tokens(tokens: Tokens, *, vocab: int, draft_vocab: int, full_vocab: int) -> Kept:
    """Keep the most frequent tokens of a text; of equally frequent ones the lower ids.

    Args:
        tokens: the text.
        vocab: tokens to keep.
        draft_vocab: of them, to draft.
        full_vocab: of the drafter.
    """
    if not 1 <= draft_vocab <= vocab <= full_vocab:
        raise InputError.mismatch(
            "vocab", wanted=f"1 <= draft_vocab <= vocab <= {full_vocab}",
            found=f"{draft_vocab} and {vocab}", fix="correct the sizes",
        )  # fmt: skip
    counts = np.bincount(tokens.ids, minlength=full_vocab)[:full_vocab]
    order = np.argsort(-counts, kind="stable")
    target = np.sort(order[:vocab]).astype(np.int64)
    draft = np.searchsorted(target, np.sort(order[:draft_vocab])).astype(np.int64)
    return Kept(target=target, draft=draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An anchor in a held-out file: the text up to the end of the block behind it."""

    domain: str
    text: tuple[int, ...]
    anchor: int


def choose_places(tokens: Tokens, kept: Kept, *, steps: int, count: int, seed: int) -> list[Place]:
    """Anchors, at most one in a file, whose block is kept; domains take turns."""
    generator = np.random.default_rng(seed)
    known = np.zeros(int(max(tokens.ids.max(), kept.target.max())) + 1, dtype=bool)
    known[kept.target] = True
    ends = np.append(tokens.starts[1:], len(tokens.ids))
    by_domain: dict[int, list[Place]] = {}
    for file in generator.permutation(len(tokens.starts)).tolist():
        start, end = int(tokens.starts[file]), int(ends[file])
        ids = tokens.ids[start:end]
        first = min(_FIRST_ANCHOR, len(ids) // 2)
        choices = [
            place
            for place in range(max(first, 1), min(len(ids) - steps - 1, 400))
            if known[ids[place : place + steps + 1]].all()
        ]
        if choices:
            place = int(generator.choice(choices))
            domain = int(tokens.domains[file])
            text = tuple(ids[: place + steps + 1].tolist())
            by_domain.setdefault(domain, []).append(
                Place(domain=DOMAINS[domain], text=text, anchor=place)
            )
    found: list[Place] = []
    while by_domain and len(found) < count:
        for domain in sorted(by_domain):
            found.append(by_domain[domain].pop())
            if not by_domain[domain]:
                del by_domain[domain]
    return found[:count]


@torch.no_grad()
def record_blocks(
    target: Target, drafter: Drafter, places: Sequence[Place], kept: Kept
) -> dict[str, torch.Tensor]:
    """Run target and drafter at each place: what a walk reads, and the tokens that follow."""
    device = target.embed_tokens.weight.device
    embedding = target.embed_tokens.weight
    draft_ids = torch.from_numpy(kept.target[kept.draft]).to(device)
    parts: dict[str, list[torch.Tensor]] = {"base_logits": [], "hidden": []}
    anchors, tokens = [], []
    for place in places:
        ids = torch.tensor([place.text[: place.anchor]], device=device)
        _, read = target(ids, read=drafter.shape.target_layers)
        assert read is not None
        positions = torch.arange(place.anchor, device=device)[None]
        hidden = drafter.draft_hidden(
            embedding[place.text[place.anchor]][None, None],
            embedding[drafter.shape.mask_token],
            torch.tensor([[place.anchor]], device=device),
            drafter.context(read, positions),
        )[0, 0]
        parts["hidden"].append(hidden.bfloat16())
        parts["base_logits"].append((hidden @ embedding[draft_ids].T).bfloat16())
        block = np.searchsorted(kept.target, place.text[place.anchor :])
        anchors.append(int(block[0]))
        tokens.append(block[1:].tolist())
    found = {name: torch.stack(values).cpu() for name, values in parts.items()}
    return found | {"anchor": torch.tensor(anchors), "tokens": torch.tensor(tokens)}


def export_sample(
    target: Target,
    drafter: Drafter,
    out: Path,
    *,
    frequent_in: Tokens,
    recorded_in: Tokens,
    vocab: int,
    draft_vocab: int,
    requests: int,
    about: dict[str, Any],
    table: Path | None = None,
    seed: int = 0,
) -> Path:
    """Write a sample.

    Args:
        target: of the drafter.
        drafter: with a head of DSpark.
        out: the folder.
        frequent_in: the text whose frequent tokens are kept.
        recorded_in: held-out text to record in.
        vocab: target tokens to keep.
        draft_vocab: draft tokens to keep.
        requests: blocks to record.
        about: where all comes from, for sample.json.
        table: qwen.tiktoken, for texts.json.
        seed: of the places.

    Returns:
        The folder.

    Raises:
        HeadError: a Domino drafter.
        InputError: sizes that do not fit, or too few places.
    """
    shape = drafter.shape
    if shape.kind == "domino":
        raise HeadError.mismatch(
            "drafter", wanted="a head of DSpark", found="a Domino head",
            fix="export another drafter: a Domino head's table is its target's embedding",
        )  # fmt: skip
    full = target.shape.vocab
    kept = choose_tokens(frequent_in, vocab=vocab, draft_vocab=draft_vocab, full_vocab=full)
    places = choose_places(recorded_in, kept, steps=shape.steps, count=requests, seed=seed)
    if len(places) < requests:
        raise InputError.mismatch(
            "requests", wanted=f"at most {len(places)}, of so many files", found=requests,
            fix="ask for fewer, or keep more tokens",
        )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    held = drafter.markov_head.state_dict()
    rows, draft = torch.from_numpy(kept.target), torch.from_numpy(kept.draft)
    held["markov_w1.weight"] = held["markov_w1.weight"].cpu()[rows]
    held["markov_w2.weight"] = held["markov_w2.weight"].cpu()[rows[draft]]
    tensors = {f"markov_head.{name}": w.bfloat16().cpu().contiguous() for name, w in held.items()}
    tensors["d2t"] = draft - torch.arange(len(draft))
    tensors["token_ids"] = rows.to(torch.int32)
    write_tensors(out / "model.safetensors", tensors)
    fields = drafter_fields(target.shape, shape)
    fields |= {"vocab_size": vocab, "draft_vocab_size": draft_vocab}
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    recorded = record_blocks(target, drafter, places, kept)
    write_tensors(out / "recorded.safetensors", recorded)
    about = about | {
        "domains": [place.domain for place in places],
        "tokens_are": "numbered anew; token_ids in model.safetensors has their ids",
        "full_vocab": full,
    }
    (out / "sample.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if table is not None:
        (out / "texts.json").write_text(json.dumps(_texts(table, kept)) + "\n", encoding="utf-8")
    return out


def _texts(table: Path, kept: Kept) -> list[str]:
    """The text of each kept token; a part of a character is a replacement sign."""
    found = {}
    for line in table.read_text(encoding="ascii").splitlines():
        token, rank = line.split()
        found[int(rank)] = base64.b64decode(token).decode("utf-8", errors="replace")
    return [found.get(token, "") for token in kept.target.tolist()]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.export", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="what lab.data wrote")
    parser.add_argument("models", type=Path, help="what lab.run wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafter", default="vanilla-7", metavar="NAME")
    parser.add_argument("--vocab", type=int, default=6144)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--table", type=Path, help="qwen.tiktoken, to write texts of tokens")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    manifest = json.loads((args.data / "manifest.json").read_text(encoding="utf-8"))
    validation = args.models / "validation.json"
    about = {
        "drafter": args.drafter,
        "validation": json.loads(validation.read_text()) if validation.is_file() else {},
        "text": "files of installed packages, see lab/README.md",
        "distributions": [
            {"name": one["name"], "licence": one["licence"]} for one in manifest["distributions"]
        ],
    }
    export_sample(
        load_target(args.models / "target", device),
        load_drafter(args.models / args.drafter, device),
        args.out,
        frequent_in=read_tokens(args.data / "train.npz"),
        recorded_in=read_tokens(args.data / "val.npz"),
        vocab=args.vocab,
        draft_vocab=args.draft_vocab,
        requests=args.requests,
        about=about,
        table=args.table,
    )


if __name__ == "__main__":
    main()
