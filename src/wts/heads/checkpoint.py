"""The tensors of a drafter's checkpoint folder.

Only the tensors that are asked for are loaded, so a drafter of many gigabytes costs its head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open

from wts.errors import CheckpointError, describe
from wts.heads.base import ProjectionWeights
from wts.heads.config import DrafterConfig, read_config, read_object
from wts.heads.draft_ids import D2tReading, draft_map
from wts.numerics.torch_dtypes import BF16_ONLY, DTYPES

__all__ = ["Checkpoint", "TensorFolder", "target_embedding", "tensor_names"]

# lm_heads are padded to a multiple of some hundred rows; more than this is another vocabulary.
_MOST_PADDING_ROWS = 1024

# What may stand before the name of a tensor: in drafters, and in models of text and of more.
_PREFIXES = ("", "model.")
_TARGET_PREFIXES = (*_PREFIXES, "language_model.", "language_model.model.", "model.language_model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFolder:
    """The tensors of a checkpoint folder, known by name and loaded one by one.

    Args:
        source: the file that lists the tensors, for messages.
        files: file of each tensor.
    """

    source: Path
    files: Mapping[str, Path]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """List the tensors of a folder.

        The weights are model.safetensors, or an index with its shards, or the only *.safetensors.

        Raises:
            CheckpointError: the folder is not a complete checkpoint.
        """
        folder = Path(folder)
        whole = folder / "model.safetensors"
        indices = sorted(folder.glob("*.safetensors.index.json"))
        singles = sorted(folder.glob("*.safetensors"))
        if whole.is_file():
            return cls(source=whole, files=dict.fromkeys(tensor_names(whole), whole))
        if len(indices) == 1:
            return cls(source=indices[0], files=_files_of_index(indices[0]))
        if not indices and len(singles) == 1:
            names = tensor_names(singles[0])
            return cls(source=singles[0], files=dict.fromkeys(names, singles[0]))
        raise CheckpointError.mismatch(
            str(folder),
            wanted="model.safetensors, or one *.safetensors.index.json with its shards",
            found=f"{len(singles)} *.safetensors and {len(indices)} indices",
            fix="pass the folder of one complete safetensors checkpoint",
        )

    def find(self, tensor: str, prefixes: Sequence[str] = _PREFIXES) -> str | None:
        """Return the full name of a tensor that may stand behind one of some prefixes, or None.

        Raises:
            CheckpointError: it is there under several names.
        """
        names = [prefix + tensor for prefix in prefixes if prefix + tensor in self.files]
        if len(names) > 1:
            raise CheckpointError.mismatch(
                f"{self.source}: tensor {tensor}",
                wanted="one",
                found=" and ".join(names),
                fix="remove the one that is not the drafter's",
            )
        return names[0] if names else None

    def load(self, name: str) -> torch.Tensor:
        """Load one tensor by its full name.

        Raises:
            CheckpointError: its file is missing or damaged, or does not hold it.
        """
        path = self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError.mismatch(
                f"{path}: tensor {name}",
                wanted="a readable tensor",
                found=str(error),
                fix="download the file again",
            ) from error
        return tensor

    def weight(
        self,
        tensor: str,
        *,
        shape: Sequence[int],
        dtypes: Sequence[torch.dtype],
        padded: bool = False,
        prefixes: Sequence[str] = _PREFIXES,
    ) -> torch.Tensor:
        """Load a tensor whose shape config.json gives.

        Args:
            tensor: its name, which may stand behind one of the prefixes.
            shape: the shape.
            dtypes: dtypes that it may have.
            padded: whether it may have rows of padding at its end.
            prefixes: what may stand before the name.

        Raises:
            CheckpointError: missing, or of another shape or dtype.
        """
        wanted = list(shape)
        name = self.find(tensor, prefixes)
        if name is None:
            room = tensor.split(".")[0]
            alike = sorted(known for known in self.files if room in known)[:4]
            raise CheckpointError.mismatch(
                f"{self.source}: tensor {tensor}",
                wanted=f"{wanted}, perhaps behind {' or '.join(filter(None, prefixes))}",
                found=f"none of that name among {len(self.files)} tensors"
                + (f", only {', '.join(alike)}" if alike else ""),
                fix="check that this is a whole checkpoint with such a head, and no adapter",
            )
        value = self.load(name)
        most = wanted[0] + (_MOST_PADDING_ROWS if padded else 0)
        if (
            value.ndim != len(wanted)
            or list(value.shape[1:]) != wanted[1:]
            or not wanted[0] <= value.shape[0] <= most
        ):
            also = f" (up to {_MOST_PADDING_ROWS} rows more are taken as padding)" if padded else ""
            raise CheckpointError.mismatch(
                f"{self.files[name]}: tensor {name}",
                wanted=f"{wanted} by config.json{also}",
                found=describe(value),
                fix="config.json and weights must be of one checkpoint",
            )
        if value.dtype not in dtypes:
            raise CheckpointError.mismatch(
                f"{self.files[name]}: tensor {name}",
                wanted=" or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes),
                found=describe(value),
                fix="convert it, or dequantise the head first",
            )
        return value


def target_embedding(folder: str | Path, *, num_rows: int, num_columns: int) -> torch.Tensor:
    """Load the token embedding of a target model in bf16, which a drafter shares.

    Args:
        folder: the folder of the target's checkpoint.
        num_rows: tokens; rows of padding behind them are cut off.
        num_columns: elements of a row.

    Returns:
        bf16 [num_rows, num_columns].

    Raises:
        CheckpointError: names the file, the tensor, what was wanted and what was found.
    """
    return TensorFolder.open(folder).weight(
        "embed_tokens.weight",
        shape=(num_rows, num_columns),
        dtypes=BF16_ONLY,
        padded=True,
        prefixes=_TARGET_PREFIXES,
    )[:num_rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened drafter folder.

    Args:
        folder: the drafter folder.
        config: what config.json says.
        tensors: its tensors.
    """

    folder: Path
    config: DrafterConfig
    tensors: TensorFolder

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the config and list the tensors of a folder.

        Raises:
            CheckpointError: the folder is not a complete checkpoint.
        """
        config = read_config(folder)
        return cls(folder=Path(folder), config=config, tensors=TensorFolder.open(folder))

    @property
    def config_path(self) -> Path:
        """The config's file, for messages."""
        return self.folder / "config.json"

    @property
    def hidden_size(self) -> int:
        """H, which the config of a head that reads hidden states has to say.

        Raises:
            CheckpointError: it does not.
        """
        size = self.config.hidden_size
        if size is None:
            raise CheckpointError.mismatch(
                f"{self.config_path}: hidden_size",
                wanted="a positive integer",
                found="nothing",
                fix="check that this is the config of a drafter",
            )
        return size

    def reader(self, device: str | torch.device) -> Callable[[str, tuple[int, ...]], torch.Tensor]:
        """Give a function that reads a bf16 tensor of exactly this shape."""

        def read(tensor: str, shape: tuple[int, ...]) -> torch.Tensor:
            return self.tensors.weight(tensor, shape=shape, dtypes=BF16_ONLY).to(device)

        return read

    def projection(
        self,
        tensor: str,
        rank: int,
        *,
        device: str | torch.device,
        d2t_reading: D2tReading,
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> ProjectionWeights:
        """Read the vocabulary projection, its padding and its map.

        Args:
            tensor: its name.
            rank: of the latent.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.
            dtypes: dtypes that it may have.

        Raises:
            CheckpointError: missing, or not as the config says.
        """
        num_draft = self.config.num_draft
        projection = self.tensors.weight(
            tensor, shape=(num_draft, rank), dtypes=dtypes, padded=True
        )
        num_padding = projection.shape[0] - num_draft
        ids = self.draft_to_target(d2t_reading)
        if ids is not None:
            ids = torch.cat([ids, ids.new_zeros(num_padding)]).to(device)
        return {
            "projection": projection.to(device),
            "draft_to_target": ids,
            "logical_vocab": num_draft if num_padding else None,
        }

    def draft_to_target(self, reading: D2tReading = "auto") -> torch.Tensor | None:
        """Load the map of a reduced draft vocabulary.

        Returns:
            int64 [num_draft], target ids; None where draft ids are target ids.

        Raises:
            CheckpointError: missing although the config wants it, or not to be read.
        """
        config, tensors = self.config, self.tensors
        name = tensors.find("d2t")
        if name is None:
            if config.num_draft == config.vocab_size:
                return None
            raise CheckpointError.mismatch(
                f"{tensors.source}: tensor d2t",
                wanted=f"a map of {config.draft_vocab_size} draft ids to target ids, since "
                f"draft_vocab_size is less than vocab_size, {config.vocab_size}",
                found="none",
                fix="export d2t with the drafter",
            )
        d2t = tensors.load(name)
        if tuple(d2t.shape) != (config.draft_vocab_size,):
            raise CheckpointError.mismatch(
                f"{tensors.files[name]}: tensor {name}",
                wanted=f"[{config.draft_vocab_size}], draft_vocab_size of config.json",
                found=describe(d2t),
                fix="config.json and weights must be of one checkpoint",
            )
        mask = tensors.find("t2d")
        try:
            ids = draft_map(
                d2t[: config.num_draft],
                num_targets=config.vocab_size,
                t2d=None if mask is None else tensors.load(mask),
                reading=reading,
            )
        except CheckpointError as error:
            raise CheckpointError(f"{tensors.files[name]}: {error}") from error
        return None if torch.equal(ids, torch.arange(config.vocab_size)) else ids


def tensor_names(path: Path) -> list[str]:
    """List the tensors of a safetensors file.

    Raises:
        CheckpointError: not such a file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError.mismatch(
            str(path),
            wanted="a safetensors file",
            found=str(error),
            fix="check the path, or download the file again",
        ) from error


def _files_of_index(path: Path) -> dict[str, Path]:
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in weight_map.values()
    ):
        raise CheckpointError.mismatch(
            f"{path}: weight_map",
            wanted="an object of tensor names and names of files in the same folder",
            found="something else",
            fix="download the index again",
        )
    return {name: path.parent / file for name, file in weight_map.items()}
