"""A drafter's config.json: the fields that a serial head depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wts.errors import CheckpointError
from wts.heads.kinds import RANKS

__all__ = ["DominoFields", "DrafterConfig", "check_config_rank", "read_config", "read_object"]

# Where drafters that nest their backbone's fields keep them.
_NESTED_CONFIGS = ("text_config", "transformer_layer_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class DominoFields:
    """What config.json says of a Domino projector.

    Args:
        emb_dim: rank of the latent.
        gru_hidden_dim: elements of the recurrent state.
        shift_label: whether step k reads hidden position k of a block, or else k + 1.
    """

    emb_dim: int
    gru_hidden_dim: int
    shift_label: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """The fields of a drafter's config.json that a serial head depends on.

    Args:
        path: the file, for messages.
        fields: all that it says, for kinds of heads that are not described here.
        markov_rank: rank of the latent of DSpark's heads; None for other drafters.
        markov_head_type: "vanilla", "gated" or "rnn".
        vocab_size: target vocabulary.
        draft_vocab_size: draft vocabulary; `vocab_size` where it is not reduced. It may also be
            larger, where a drafter keeps the padding of its target's lm_head.
        block_size: tokens that the drafter was trained to propose, if it says.
        hidden_size: elements of a hidden state of the drafter, if it says.
        domino: its projector, if it is a Domino drafter.
    """

    path: Path
    fields: Mapping[str, Any]
    markov_rank: int | None
    markov_head_type: str
    vocab_size: int
    draft_vocab_size: int
    block_size: int | None
    hidden_size: int | None = None
    domino: DominoFields | None = None

    @property
    def rank(self) -> int:
        """Rank of the latent.

        Raises:
            CheckpointError: there is none.
        """
        if self.domino is not None:
            return self.domino.emb_dim
        if self.markov_rank is not None:
            return self.markov_rank
        return _positive_field(self.path, self.fields, "markov_rank")

    @property
    def num_draft(self) -> int:
        """Draft ids that are real tokens."""
        return min(self.draft_vocab_size, self.vocab_size)


def read_config(folder: str | Path) -> DrafterConfig:
    """Read what config.json of a drafter folder says about its serial head.

    Raises:
        CheckpointError: names the file, the field, what was wanted and what was found.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError.mismatch(
            str(path),
            wanted="the config of a drafter",
            found="no such file",
            fix="pass the drafter folder, the one with config.json and *.safetensors",
        )
    fields = read_object(path)
    config: dict[str, Any] = {}
    for nested in _NESTED_CONFIGS:
        inner = fields.get(nested)
        if isinstance(inner, dict):
            config |= inner
    config |= fields
    head_type = config.get("markov_head_type", "vanilla")
    if not isinstance(head_type, str):
        raise CheckpointError.mismatch(
            f"{path}: markov_head_type", wanted="a string", found=repr(head_type), fix="correct it"
        )
    vocab_size = _positive_field(path, config, "vocab_size")
    has_draft_vocab = config.get("draft_vocab_size") is not None
    has_block_size = config.get("block_size") is not None
    has_hidden_size = config.get("hidden_size") is not None
    domino = _domino_fields(path, config)
    has_rank = domino is None and "markov_rank" in config
    return DrafterConfig(
        path=path,
        fields=config,
        markov_rank=_positive_field(path, config, "markov_rank") if has_rank else None,
        markov_head_type=head_type.lower(),
        vocab_size=vocab_size,
        draft_vocab_size=(
            _positive_field(path, config, "draft_vocab_size") if has_draft_vocab else vocab_size
        ),
        block_size=_positive_field(path, config, "block_size") if has_block_size else None,
        hidden_size=_positive_field(path, config, "hidden_size") if has_hidden_size else None,
        domino=domino,
    )


def check_config_rank(field: str, rank: int) -> None:
    """Refuse a config whose rank is not supported."""
    if rank not in RANKS:
        raise CheckpointError.mismatch(
            field,
            wanted=f"one of {', '.join(map(str, RANKS))}",
            found=rank,
            fix="heads of other ranks are not supported",
        )


def _domino_fields(path: Path, config: Mapping[str, Any]) -> DominoFields | None:
    """The projector's fields, each in `dflash_config` or beside it; None for another drafter."""
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, dict) else {}
    fields = {**config, **inner}
    if fields.get("projector_type") != "domino":
        return None
    outer_rank = config.get("emb_dim")
    if outer_rank is not None and inner.get("emb_dim", outer_rank) != outer_rank:
        raise CheckpointError.mismatch(
            f"{path}: dflash_config.emb_dim",
            wanted=f"{outer_rank}, the emb_dim beside dflash_config",
            found=repr(inner["emb_dim"]),
            fix="correct the one that is wrong",
        )
    for field, wanted, right in (
        ("shift_label", "true or false", isinstance(fields.get("shift_label"), bool)),
        ("pure_draft_prefix_len", "1", fields.get("pure_draft_prefix_len") == 1),
    ):
        if not right:
            raise CheckpointError.mismatch(
                f"{path}: dflash_config.{field}",
                wanted=wanted,
                found=repr(fields[field]) if field in fields else "nothing",
                fix="Domino drafters of other kinds cannot be read",
            )
    return DominoFields(
        emb_dim=_positive_field(path, fields, "emb_dim"),
        gru_hidden_dim=_positive_field(path, fields, "gru_hidden_dim"),
        shift_label=fields["shift_label"],
    )


def read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError.mismatch(
            str(path), wanted="a JSON object", found=str(error), fix="download the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError.mismatch(
            str(path),
            wanted="a JSON object",
            found=type(value).__name__,
            fix="download the file again",
        )
    return value


def _positive_field(path: Path, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError.mismatch(
            f"{path}: {field}",
            wanted="a positive integer",
            found="nothing" if field not in config else repr(value),
            fix="check that this is the config of a drafter with a serial head",
        )
    return value
