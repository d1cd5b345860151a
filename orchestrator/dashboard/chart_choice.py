"""Which charts a page shows, and in which order. The address says it: `?pin=loss&hide=train/lr&find=accuracy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query

from orchestrator.dashboard.pages.parts import AskedView
from orchestrator.review.charts.catalogue import Chart, groups_of
from orchestrator.review.charts.curves import View
from orchestrator.review.logs.page_size import fitting, html_bytes

MOST_CHARTS = 60
"""On a page: of more metrics a person chooses."""
_MOST_NAMED = 60
"""Charts that an address names, of each kind."""
_ROOM, _OF_A_CHART, _NAMES_IN_A_CHART, _TITLES_IN_A_CHART = 28 << 10, 350, 6, 2
"""Bytes of the charts with the list that chooses among them, and of each beside its names."""
_ROOM_OF_NAMES, _OF_A_NAME = 4 << 10, 46
"""Bytes of the names of pinned charts in the form of a page, as of hidden ones, and of each beside its name."""
_LONGEST = 200

Word = Annotated[str, Query(max_length=_LONGEST)]
Names = Annotated[tuple[Word, ...], Query(max_length=_MOST_NAMED)]
Followed = Annotated[tuple[Word, ...], Query(max_length=30)]
"""Charts that a page asks for together: those in sight."""


@dataclass(frozen=True)
class ChartChoice:
    """What an address says of charts. `pinned`: those that come first, in this order; `hidden`; `find`: what the names
    of the others contain; `only_pinned`: no others. `view`: how curves are looked at.
    """

    pinned: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    find: str = ""
    only_pinned: bool = False
    view: View = field(default_factory=View)

    def parameters(self) -> list[tuple[str, str]]:
        """The address of this choice; what is as it is without one is left out."""
        view = self.view
        return [
            *(("pin", name) for name in self.pinned),
            *(("hide", name) for name in self.hidden),
            *([("find", self.find)] if self.find else []),
            *([("only", "pinned")] if self.only_pinned else []),
            *([("x", view.x)] if view.x != "steps" else []),
            *([("smoothing", f"{view.smoothing:g}")] if view.smoothing else []),
            *([("log", "true")] if view.log else []),
            *([("perplexity", "true")] if view.perplexity else []),
        ]

    def after(self, action: str) -> ChartChoice:
        """The choice after a button was pressed: `pin:NAME`, `unpin:`, `hide:`, `show:`, `earlier:` or `later:`."""
        verb, _, name = action.partition(":")
        pinned = [each for each in self.pinned if each != name]
        hidden = [each for each in self.hidden if each != name]
        match verb:
            case "pin":
                pinned.append(name)
            case "hide":
                hidden.append(name)
            case "earlier" | "later" if name in self.pinned:
                place = self.pinned.index(name) + (1 if verb == "later" else -1)
                pinned.insert(max(0, place), name)
            case "unpin" | "show":
                pass
            case _:
                return self
        return replace(self, pinned=tuple(pinned[-_MOST_NAMED:]), hidden=tuple(hidden[-_MOST_NAMED:]))


def asked_choice(
    view: AskedView, pin: Names = (), hide: Names = (), find: Word = "", only: Word = "", do: Names = ()
) -> tuple[ChartChoice, str | None]:
    """The choice that an address names, and where it is to be found if buttons were pressed in the form of the page."""
    pinned = tuple(fitting(dict.fromkeys(pin), str, _ROOM_OF_NAMES, _OF_A_NAME))
    hidden = tuple(fitting(dict.fromkeys(name for name in hide if name not in pin), str, _ROOM_OF_NAMES, _OF_A_NAME))
    choice = ChartChoice(pinned, hidden, find, only == "pinned", view)
    for action in do:
        choice = choice.after(action)
    return choice, urlencode(choice.parameters(), errors="replace") if do else None


AskedChoice = Annotated[tuple[ChartChoice, str | None], Depends(asked_choice)]


@dataclass(frozen=True)
class ChosenCharts:
    """The charts of a page: the pinned ones, and the others in groups. `listed`: all that match in groups, also those
    that are hidden, as far as there is room. `count`: of all charts; `shown`: on the page; `more`: match, do not fit.
    """

    pinned: Sequence[Chart]
    groups: Sequence[tuple[str, Sequence[Chart]]]
    listed: Sequence[tuple[str, Sequence[Chart]]]
    count: int
    shown: int
    more: int


def chosen(charts: Sequence[Chart], choice: ChartChoice) -> ChosenCharts:
    """The charts of a page out of all that there are, which stand in groups."""
    named = {chart.name: chart for chart in charts}
    words = choice.find.casefold().split()
    matching = [chart for chart in charts if all(word in _words(chart) for word in words)]
    pinned = fitting((named[name] for name in choice.pinned if name in named), _text, _ROOM, _OF_A_CHART, at_least=1)
    left = _ROOM - sum(html_bytes(_text(chart)) + _OF_A_CHART for chart in pinned)
    listed = fitting(matching[:MOST_CHARTS], _text, left, _OF_A_CHART)
    left_out = {*choice.pinned, *choice.hidden}
    others = [] if choice.only_pinned else [chart for chart in listed if chart.name not in left_out]
    return ChosenCharts(
        pinned=pinned,
        groups=groups_of(others),
        listed=groups_of(listed),
        count=len(charts),
        shown=len(pinned) + len(others),
        more=len(matching) - len(listed),
    )


def _words(chart: Chart) -> str:
    return " ".join([chart.title, *chart.keys, *chart.also]).casefold()


def _text(chart: Chart) -> str:
    return _NAMES_IN_A_CHART * chart.name + _TITLES_IN_A_CHART * chart.title
