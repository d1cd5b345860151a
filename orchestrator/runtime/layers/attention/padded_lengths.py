"""How long the samples of a batch are, which every layer of an encoder asks."""

from __future__ import annotations

import torch


class Lengths:
    """Counts the keys of a mask that are not hidden, and remembers the last mask it was asked for."""

    def __init__(self) -> None:
        self._counted: tuple[torch.Tensor, torch.Tensor] | None = None

    def ends(self, hidden: torch.Tensor) -> torch.Tensor:
        """Where each sample would end were they one behind the other without padding, [b + 1] from 0 on, int32.

        hidden: [b, 1, 1, s], True where there is no key. A mask is known by being the same tensor, not by its values.
        So each pass has to make its own: what is captured in a graph has to count it there.
        """
        if self._counted is None or self._counted[0] is not hidden:
            ends = (~hidden).flatten(1).sum(1).cumsum(0).int()
            self._counted = hidden, torch.nn.functional.pad(ends, (1, 0))
        return self._counted[1]
