"""The one list of model families. `model.family` of a job leads here, and code outside this package asks for a trait of
the family, never for its name. What a room has for each family stands in a `FamilyTable`; what only some of them go
with is in `features.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Generic, Literal, NamedTuple, TypeVar

Architecture = Literal["gpt", "bert", "t5", "mamba"]
"""The names of the families, as `model.architecture` has them."""
Positions = Literal["rope", "learned_absolute", "alibi", "relative", "none"]
"""How positions are told apart, as `model.position_embedding_type` has it."""


class ModelFamily(NamedTuple):
    """What is true of all models of a family, as far as other code depends on it."""

    name: Architecture
    positions: tuple[Positions, ...]
    """What `model.position_embedding_type` may be."""
    is_decoder_only: bool = False
    """Each token attends to itself and those before it, and the next one is predicted: there are scores of it."""
    is_encoder_decoder: bool = False
    """A model has an encoder and a decoder, each with layers, a sequence length and pipeline stages of its own
    (`spec.encoder_decoder`)."""
    is_masked_lm: bool = False
    """Masked tokens are predicted, from both sides of them. The samples are two parts between special tokens, told
    apart by token types; between the last layer and the output layer there is a head with a dense layer and a norm."""
    is_hybrid: bool = False
    """Layers are of several kinds, in the order of `layer_pattern.layer_pattern`; some need the kernels of state space
    layers."""
    residual_branches: int = 2
    """Branches of the residual stream that a layer is: attention and MLP, or either of them alone."""
    least_sentences: int = 0
    """Sentences that a sample has at least where samples are whole sentences of one document; 0 where they are cut from
    documents at any token."""
    targets_vary: bool = False
    """Samples have different numbers of tokens that count in the loss: each of these weighs the same by default."""
    no_generation: str | None = None
    """Why no text is generated with its models, as in "the run holds …"; None where it is."""


_OF_DECODERS: Final[tuple[Positions, ...]] = ("learned_absolute", "rope", "none", "alibi")

GPT: Final = ModelFamily(
    "gpt",
    positions=_OF_DECODERS,
    is_decoder_only=True,
)
BERT: Final = ModelFamily(
    "bert",
    positions=("learned_absolute", "rope", "none"),
    is_masked_lm=True,
    least_sentences=2,
    no_generation="a BERT: BERT predicts masked tokens from what stands on both sides of them, and does not continue a "
    "text",
)
T5: Final = ModelFamily(
    "t5",
    positions=("learned_absolute", "rope", "relative", "none"),
    is_encoder_decoder=True,
    least_sentences=1,
    targets_vary=True,
)
MAMBA: Final = ModelFamily(
    "mamba",
    positions=_OF_DECODERS,
    is_decoder_only=True,
    is_hybrid=True,
    residual_branches=1,
)
FAMILIES: Final[Mapping[str, ModelFamily]] = {family.name: family for family in (GPT, BERT, T5, MAMBA)}
"""By name. A family that is new stands here, in `Architecture`, and in each room's `FamilyTable`."""

Entry = TypeVar("Entry")


class FamilyTable(Generic[Entry]):
    """What a room has for each family. Raises TypeError, as the room is imported, where one is missing or unknown."""

    def __init__(self, **entries: Entry) -> None:
        if entries.keys() != FAMILIES.keys():
            raise TypeError(f"a table of families has {', '.join(entries)}, and the families are {', '.join(FAMILIES)}")
        self._entries = entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def of(self, family: ModelFamily) -> Entry:
        """The entry of a family."""
        return self._entries[family.name]
