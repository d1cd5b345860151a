"""Which drafts are accepted: what a row gets has the model's own distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from orchestrator.inference.generation.draft_verification import SpeculativeChoice, drawn
from orchestrator.spec.generation import options_of

VOCAB, DRAFTS, LENGTH, ROWS = 4, 2, 3, 6000
LIMIT = 130.0
"""Of chi-square with 63 degrees of freedom, a larger one has a probability of 1e-6."""
Logits = Callable[[torch.Tensor], torch.Tensor]


def by_last_two(seed: int, spread: float) -> Logits:
    """A model of which the last two tokens of [b, n] tell the logits, [b, v]."""
    table = spread * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
    return lambda text: table[text[:, -2], text[:, -1]]


@cache
def texts(model: Logits, drafter: Logits, **options: Any) -> tuple[torch.Tensor, float]:
    """LENGTH new tokens of each row, and the mean of accepted drafts in the first round."""
    each = [options_of({"max_new_tokens": 8, **options, "seed": seed}) for seed in range(ROWS)]
    choice = SpeculativeChoice(each, [[0, 1]] * ROWS, VOCAB, [], torch.device("cpu"))
    first, _ = choice(model(torch.tensor([[0, 1]]).expand(ROWS, -1)))
    choice.note(first)
    rows = [[0, 1, token] for token in first.tolist()]
    accepted = []
    while min(map(len, rows)) < 2 + LENGTH:
        text = torch.tensor([row[-2:] for row in rows])
        choice.begin_drafts()
        for _ in range(DRAFTS):
            draft = choice.draft(drafter(text))
            choice.note(draft)
            text = torch.cat((text, draft[:, None]), dim=1)
        choice.end_drafts()
        logits = torch.stack([model(text[:, : 2 + place]) for place in range(DRAFTS + 1)], dim=1)
        tokens, _, numbers = choice.verify(logits, text[:, 2:])
        rows = [[*row, *new[:number]] for row, new, number in zip(rows, tokens.tolist(), numbers.tolist(), strict=True)]
        accepted.append((numbers - 1).float().mean().item())
    return torch.tensor([row[2 : 2 + LENGTH] for row in rows]), accepted[0]


def expected(model: Logits, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The probability of each text, [v, v, v], of logits that options change."""
    found = torch.ones(())
    for place in range(LENGTH):
        prefixes = torch.cartesian_prod(*[torch.arange(VOCAB)] * place) if place else torch.empty(1, 0)
        prefixes = prefixes.view(VOCAB**place, place).long()
        text = torch.cat((torch.tensor([[0, 1]]).expand(len(prefixes), -1), prefixes), dim=1)
        found = found[..., None] * change(model(text)).softmax(-1).view(*found.shape, VOCAB)
    return found


def chi_square(found: torch.Tensor, probabilities: torch.Tensor) -> float:
    counts = torch.bincount((found * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1), minlength=VOCAB**LENGTH)
    wanted = probabilities.flatten() * len(found)
    assert (counts[wanted == 0] == 0).all(), "what cannot be drawn was"
    can_be = wanted > 0
    return float(((counts - wanted)[can_be].square() / wanted[can_be]).sum())


MODEL, DRAFTER = by_last_two(1, 1.0), by_last_two(2, 1.0)


def without_the_last(logits: torch.Tensor) -> torch.Tensor:
    """As top-k of 3."""
    return logits.masked_fill(logits == logits.min(-1, keepdim=True).values, -torch.inf)


@pytest.mark.parametrize(
    ("drafter", "options", "change"),
    [
        pytest.param(DRAFTER, {}, lambda logits: logits, id="other drafts"),
        pytest.param(MODEL, {}, lambda logits: logits, id="own drafts"),
        pytest.param(DRAFTER, {"temperature": 0.7}, lambda logits: logits / 0.7, id="temperature"),
        pytest.param(DRAFTER, {"top_k": 3}, without_the_last, id="top-k"),
    ],
)
def test_texts_have_the_models_distribution(
    drafter: Logits, options: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    found, _ = texts(MODEL, drafter, **options)
    assert chi_square(found, expected(MODEL, change)) < LIMIT


def test_the_check_would_find_another_distribution() -> None:
    found, _ = texts(MODEL, DRAFTER)
    assert chi_square(found, expected(DRAFTER, lambda logits: logits)) > 10 * LIMIT
    assert chi_square(found, expected(MODEL, lambda logits: 0.8 * logits)) > LIMIT


def test_as_many_are_accepted_as_distributions_share() -> None:
    """The first draft with probability sum of min(p, q) (Leviathan et al. 2023, corollary 3.6), the second after it."""
    _, own = texts(MODEL, MODEL)
    assert own == DRAFTS
    _, other = texts(MODEL, DRAFTER)
    start = torch.tensor([[0, 1]])
    wanted = 0.0
    for first, likely in enumerate(MODEL(start)[0].softmax(-1).tolist()):
        pairs = [each(torch.tensor([[1, first]]))[0].softmax(-1) for each in (MODEL, DRAFTER)]
        shared = torch.minimum(*pairs)
        after = torch.tensor([[first, token] for token in range(VOCAB)])
        again = torch.minimum(MODEL(after).softmax(-1), DRAFTER(after).softmax(-1)).sum(-1)
        wanted += likely * float((shared * (1 + again)).sum())
    assert other == pytest.approx(wanted, abs=0.04)


def test_a_greedy_row_takes_the_likeliest_beside_one_that_draws() -> None:
    each = [options_of({"temperature": 0}), options_of({}), options_of({"temperature": 0, "log_probabilities": True})]
    choice = SpeculativeChoice(each, [[0]] * 3, VOCAB, [], torch.device("cpu"))
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0]])
    choice.begin_drafts()
    for place in range(2):
        draft = choice.draft(logits[place].expand(3, -1))
        assert draft[[0, 2]].tolist() == [logits[place].argmax()] * 2
        choice.note(draft)
    choice.end_drafts()
    tokens, measured, numbers = choice.verify(logits.expand(3, -1, -1), torch.tensor([[1, 0], [1, 0], [1, 3]]))
    assert numbers[[0, 2]].tolist() == [3, 2]
    assert tokens[0].tolist() == [1, 0, 2]
    assert tokens[2, :2].tolist() == [1, 0]
    torch.testing.assert_close(measured[2, :2], logits.log_softmax(-1)[[0, 1], [1, 0]])


def test_steps_of_each_row_withhold_its_end_and_penalise_what_it_has() -> None:
    """The end is not chosen before the third token; 2 is chosen once, and then is half as likely as 1."""
    each = [options_of({"temperature": 0, "min_new_tokens": 2, "repetition_penalty": 2.0})] * 2
    choice = SpeculativeChoice(each, [[0]] * 2, VOCAB, [3], torch.device("cpu"))
    logits = torch.tensor([-9.0, 3.0, 4.0, 3.5])
    choice.begin_drafts()
    drafts = []
    for _ in range(2):
        drafts.append(choice.draft(logits.expand(2, -1)))
        choice.note(drafts[-1])
    choice.end_drafts()
    assert [draft.tolist() for draft in drafts] == [[2, 2], [1, 1]]
    tokens, _, numbers = choice.verify(logits.expand(2, 3, -1), torch.tensor([[2, 1], [1, 1]]))
    assert tokens[0].tolist() == [2, 1, 3]
    assert numbers.tolist() == [3, 1]
    assert tokens[1, 0] == 2
    rows, _ = choice(logits.expand(2, -1))
    assert rows.tolist() == [2, 1], "the second row has one token yet"


def test_nothing_of_weight_zero_is_drawn() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]]).expand(4, -1)
    noise = torch.tensor([0.0, 0.2499, 0.25, 1.0])[:, None]
    assert drawn(weights, noise).tolist() == [1, 1, 3, 3]


def test_noise_of_a_row_does_not_depend_on_the_others() -> None:
    """Also where another one is longer by hundreds of tokens."""

    level, certain = torch.zeros(2, 1000), torch.eye(1000)[:2, None].expand(-1, DRAFTS + 1, -1)

    def first_row(*lengths: int) -> tuple[list[int], list[int]]:
        options, rows = [options_of({"max_new_tokens": length, "seed": 7}) for length in lengths], len(lengths)
        choice = SpeculativeChoice(options, [[0, 1]] * rows, 1000, [], torch.device("cpu"))
        choice.begin_drafts()
        drafts = torch.stack([choice.draft(level[:rows]) for _ in range(DRAFTS)], dim=1)
        choice.end_drafts()
        tokens, _, _ = choice.verify(certain[:rows], drafts)
        return drafts[0].tolist(), tokens[0].tolist()

    assert first_row(10) == first_row(10, 300) == first_row(257)
