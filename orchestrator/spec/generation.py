"""How a text is continued: what is asked of `generate`, of its Python interface and of the server alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Self

from pydantic import FailFast, Field, ValidationError, model_validator

from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import as_yaml, few, shorten
from orchestrator.fields.values import After, Number, Positive, Seed, Size
from orchestrator.models.layers import prediction_layers
from orchestrator.spec.messages.suggestions import alike, closest
from orchestrator.spec.messages.validation import in_words
from orchestrator.spec.model import ModelSpec

MAX_BEAMS = 256
MAX_STOPS = 32
MAX_STOP_LENGTH = 512
"""Length of each, in characters: after every token the end of the text is compared with them."""
MAX_TEMPERATURE = 1000.0
GREEDY_BELOW = 1e-5
"""Below this, fp32 scores cannot be divided by the temperature, and only the likeliest token would be drawn."""
MAX_PENALTY = 1000.0
"""Largest repetition penalty; its inverse is the smallest. fp32 can multiply scores by it."""
MAX_LENGTH_PENALTY = 10.0
"""In both directions: a length to a higher power overflows a float."""


_SYNONYMS = (
    (
        *("max_new_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_length", "max_gen_toks"),
        *("n_predict", "num_predict", "tokens_to_generate"),
    ),
    ("min_new_tokens", "min_tokens", "min_length"),
    ("repetition_penalty", "repeat_penalty"),
    ("num_beams", "beams", "n_beams", "beam_size", "beam_width"),
    ("stop", "stop_sequences", "stop_strings", "stop_words", "stop_words_list", "until"),
    ("log_probabilities", "logprobs", "return_logprobs"),
    ("ignore_end", "ignore_eos"),
    ("seed", "random_seed"),
    ("n", "num_return_sequences", "num_completions"),
    ("prompt", "prompts", "input", "inputs", "text"),
    ("stream", "streaming"),
)
"""Names of one and the same option: here, in OpenAI's interface, in transformers, vLLM, llama.cpp and the server of
Megatron-LM.
"""


def _no_empty_stop(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        raise ValueError("an empty stop string would stop before anything is written")
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_LENGTH:
        raise ValueError(f"a stop string of {longest} characters; at most {MAX_STOP_LENGTH}")
    return stops


class Generation(Section):
    """Options of one continuation. A token is taken greedily at temperature 0 and with beams, else drawn."""

    max_new_tokens: Positive = 100
    """Tokens to add at most."""
    min_new_tokens: Size = 0
    """Tokens before which the end of the text is not chosen."""
    temperature: Annotated[float, Number(ge=0.0, le=MAX_TEMPERATURE)] = 1.0
    """0 takes the likeliest token; higher is more varied."""
    top_k: Size = 0
    """Choose among the K likeliest tokens; 0 is all."""
    top_p: Annotated[float, Number(gt=0.0, le=1.0)] = 1.0
    """Choose among the likeliest tokens that together have this probability."""
    top_p_decay: Annotated[float, Number(gt=0.0, le=1.0)] = 1.0
    """Multiply `top_p` by this after each token (Lee et al. 2022, factual nucleus sampling; not reset at sentences)."""
    top_p_bound: Annotated[float, Number(ge=0.0, le=1.0)] = 0.0
    """Below this `top_p` does not decay."""
    repetition_penalty: Annotated[float, Number(ge=1 / MAX_PENALTY, le=MAX_PENALTY)] = 1.0
    """Makes tokens that occurred, in the prompt too, less likely: a score is divided by it, or multiplied where it is
    negative."""
    num_beams: Annotated[int, Number(gt=0, le=MAX_BEAMS)] = 1
    """Beam search over this many sequences; 1 is none."""
    length_penalty: Annotated[float, Number(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] = 1.0
    """Beams are compared by their log-probability over their length to this power: above 0 favours long texts."""
    stop: Annotated[tuple[str, ...], FailFast(), Field(max_length=MAX_STOPS), After(_no_empty_stop)] = ()
    """End before any of these texts."""
    add_bos: bool = False
    """Put the tokenizer's token that begins a text before the prompt."""
    ignore_end: bool = False
    """Go on after a token that ends the text, up to `max_new_tokens`."""
    log_probabilities: bool = False
    """Also say how likely each token was."""
    seed: Seed = 1234
    """The same seed draws the same text for a prompt, whatever else is in the batch."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}")
        if self.top_p_bound > self.top_p:
            raise ValueError(f"top_p_bound {self.top_p_bound} is above top_p {self.top_p}")
        drawing = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        drawn = [name for name in drawing if name in self.model_fields_set and self._draws(name)]
        if self.num_beams > 1 and drawn:
            raise ValueError(f"num_beams {self.num_beams} searches and does not draw: leave out {', '.join(drawn)}")
        return self

    def _draws(self, name: str) -> bool:
        """Whether an option that was given has a drawing in mind."""
        value = getattr(self, name)
        return bool(value not in (0.0, 1.0) if name != "top_k" else value > 1)

    @property
    def is_greedy(self) -> bool:
        """Whether no token is drawn."""
        return self.temperature < GREEDY_BELOW or self.num_beams > 1


def options_of(given: Mapping[str, Any], where: str = "") -> Generation:
    """The options in a mapping. Raises UserError with everything that is wrong with them, after `where`."""
    try:
        return Generation.model_validate(given)
    except ValidationError as error:
        problems = few(error.errors(include_url=False), _sentence)
        raise UserError(f"{where}{problems}", code="wrong_generation_options") from error


def check_drafts(model: ModelSpec, count: int, label: str) -> None:
    """Raises UserError where a model has not so many layers of multi-token prediction, each of which drafts a token.
    `label`: where its weights are.
    """
    layers = len(prediction_layers(model))
    if count and not layers:
        raise UserError(
            f"{label} holds a model without layers of multi-token prediction (model.mtp_num_layers is 0), which "
            "speculative decoding drafts with: leave num_speculative_tokens out",
            code="no_draft_layers",
        )
    if not 0 <= count <= layers:
        raise UserError(
            f"num_speculative_tokens is {count}, and each of them needs a layer of multi-token prediction, of which "
            f"{label} has {layers}: write 0 to {layers}",
            code="too_few_draft_layers",
        )


def unknown_option(name: str, legal: Collection[str], where: str = "") -> str:
    """What is said of a name that is none of the legal ones, behind where it stands: the one that was probably meant,
    else all of them.
    """
    plain = name.replace("-", "_").lower()
    group = next((names for names in _SYNONYMS if plain in names), ())
    meant = [each for each in group if each in legal][:1] or closest(name, legal) or alike(name, legal)
    hint = (
        f"did you mean {' or '.join(meant)}?"
        if meant
        else f"there {'is' if len(legal) == 1 else 'are'} {', '.join(legal)}"
    )
    return f"{where}{as_yaml(shorten(name))} is not an option; {hint}"


def _sentence(error: Any) -> str:
    name = shorten(".".join(str(part) for part in error["loc"]))
    if error["type"] == "extra_forbidden":
        return unknown_option(name, Generation.model_fields)
    return f"{name}: {in_words(error)}" if name else in_words(error)
