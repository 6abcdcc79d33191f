"""How latents are made: hidden states, a head's state, and how blocks share them out."""

from __future__ import annotations

from dataclasses import dataclass

from wts.hardware.gpu import GpuSpec
from wts.kernels.resident.product import Product
from wts.kernels.resident.rounds import Rounds
from wts.kernels.resident.shard import Shard
from wts.selection.request import WalkRequest

__all__ = ["Recurrence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """How latents are made of hidden states and of a state; nothing to do where rows are latents.

    A neuron is an element of the state, or, of a head without one, of a gate.

    Args:
        hidden_inside: whether the kernel multiplies hidden states, each block with rows of its own.
        hidden_buffers: steps whose hidden states it then holds at once.
    """

    request: WalkRequest
    gpu: GpuSpec
    shard: Shard
    product: Product
    rounds: Rounds
    hidden_inside: bool
    hidden_buffers: int

    @property
    def hidden_term(self) -> int:
        """Numbers that the hidden states add to a step of a request."""
        return self.request.kind.hidden_term * self.request.shape.rank

    @property
    def hidden_rows(self) -> int:
        """Rows of a block that the kernel multiplies with hidden states; one where it does not."""
        if not self.hidden_inside:
            return 1
        if self.request.kind.projects:
            return self.block_projections
        return self.sums * self.block_neurons

    @property
    def term_buffers(self) -> int:
        """Steps of which a block holds what hidden states add."""
        return self.request.kind.term_buffers if self.hidden_inside else 2

    # ---- neurons, whose state sums blocks share out --------------------------------------------

    @property
    def sums(self) -> int:
        """State sums of a neuron, which need no token."""
        return self.request.kind.sums

    @property
    def neurons(self) -> int:
        """Neurons whose state sums blocks share out and exchange ahead."""
        shape = self.request.shape
        return shape.state or (shape.rank if self.hidden_inside else 0)

    @property
    def block_neurons(self) -> int:
        """Neurons whose sums one block makes. At least 1: C++ has no empty array."""
        return max(1, -(-self.neurons // self.shard.num_blocks))

    @property
    def neuron_columns(self) -> int:
        """Requests of a group that have neurons. At least 1: C++ has no empty array."""
        return self.product.columns if self.neurons else 1

    @property
    def sum_words(self) -> int:
        """64-bit words of a request in which blocks exchange state sums, or new states."""
        if self.sharded_state:
            return -(-self.neurons // self.block_neurons) * self.block_words
        return self.neurons * self.request.kind.sum_words

    @property
    def sum_storage(self) -> int:
        """Neurons of a request whose sums wait in every block. At least 1: no empty array."""
        return 1 if self.sharded_state else max(1, self.neurons)

    @property
    def state_words(self) -> int:
        """64-bit words of the workspace for sums, states and projections of every request."""
        words = self.sum_words + self.projector_rows
        requests = self.product.groups * self.product.columns
        return self.request.kind.sum_buffers * requests * words

    # ---- a head with a state -------------------------------------------------------------------

    @property
    def sharded_state(self) -> bool:
        """Whether a block absorbs tokens for its own neurons only, and blocks exchange new states.

        Few requests have the sums before exchanged instead, a step ahead, and every block absorbs
        all of a token: an exchange less while a step waits, but work that grows with requests.
        """
        many = self.product.groups > 1 or self.product.columns > 2
        return self.request.shape.state > 0 and many

    @property
    def block_words(self) -> int:
        """Words in which a block says the new states of its neurons."""
        return -(-self.block_neurons // self.request.kind.states_per_word)

    @property
    def states(self) -> int:
        """Requests whose state is kept. At least 1: C++ has no empty array."""
        return self.product.groups * self.product.columns if self.request.shape.state else 1

    @property
    def joint_numbers(self) -> int:
        """Rounded sums of a request that wait until its latent is sent. At least 1.

        With a sharded state: the latent on its way from the words to its quantisation.
        """
        left = self.request.kind.sums_left
        return (1 if self.sharded_state else left) * self.request.shape.rank if left else 1

    @property
    def deferred_tokens(self) -> int:
        """Tokens kept for latents that are fetched later; one where each is fetched at once.

        A sharded state absorbs a token at once, whenever its latent is made.
        """
        product = self.product
        deferred = product.groups > self.rounds.latent_buffers and not self.sharded_state
        return product.groups * product.columns if deferred else 1

    @property
    def state_matrix_bytes(self) -> int:
        """Bytes of a block's rows of the state's matrix."""
        return 2 * self.sums * self.block_neurons * self.request.shape.state

    @property
    def state_fills_blocks(self) -> bool:
        """Whether these leave little room: of a small head, whose vocabulary fills few blocks."""
        return self.state_matrix_bytes > self.gpu.shared_bytes_per_block // 2

    @property
    def projector_rows(self) -> int:
        """Rows of a second matrix, with which latents are made of new states; 0: none."""
        return self.request.shape.rank if self.request.kind.projects else 0

    @property
    def block_projections(self) -> int:
        """Rows of it in one block. At least 1: C++ has no empty array."""
        return max(1, -(-self.projector_rows // self.shard.num_blocks))

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        kind = self.request.kind
        return {
            "PART": self.hidden_term,
            "STATES": self.states,
            "HIDDEN_ROWS": self.hidden_rows,
            "HIDDEN_PLACES": self.hidden_buffers,
            "HIDDEN_STORAGE": self.request.shape.hidden if self.hidden_inside else 1,
            "HIDDEN_INSIDE": self.hidden_inside,
            "UNITS": self.neurons,
            "UNIT_ROWS": self.sums,
            "UNIT_BYTES": kind.sum_bytes,
            "EARLY_SLOTS": kind.sum_buffers,
            "PART_SLOTS": self.term_buffers,
            "BLOCK_UNITS": self.block_neurons,
            "PROJECTOR_ROWS": self.projector_rows,
            "BLOCK_PROJECTIONS": self.block_projections,
            "JOINT_STORAGE": self.joint_numbers,
            "EARLY_COLUMNS": self.neuron_columns,
            "EARLY_WORDS": self.sum_words,
            "WORD_UNITS": kind.states_per_word,
            "BLOCK_WORDS": self.block_words,
            "UNIT_STORAGE": self.sum_storage,
            "PROJECTOR_STORAGE": max(1, self.projector_rows),
            "LATER_TOKENS": self.deferred_tokens,
        }

    def switches(self) -> dict[str, bool]:
        """What the preprocessor is told of it."""
        return {"WTS_OWNED": self.sharded_state}
