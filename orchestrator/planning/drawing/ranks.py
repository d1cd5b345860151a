"""Ranks on their nodes: a box for each node, a cell for each GPU in its stage's colour, tensor groups outlined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.planning.drawing.colours import stage_colour
from orchestrator.planning.drawing.svg import drawing, element, title
from orchestrator.planning.layout.topology import LayerRange, Rank, Topology

MOST_GPUS = 256
"""With more than this, only the nodes of the first replica are drawn."""
MOST_NODES = 64
"""With more than this even so, only the first of them."""

_COLUMNS = 4
_CELL_WIDTH, _CELL_HEIGHT, _GAP = 62, 38, 8
_PADDING, _HEAD = 10, 26


def drawn_nodes(layout: Topology) -> list[int]:
    """The nodes to draw: all, or those of the first replica where there are many GPUs."""
    if layout.world_size <= MOST_GPUS:
        return list(range(layout.nodes))
    return sorted({rank.node for rank in layout.ranks if rank.dp == 0})[:MOST_NODES]


def what_is_drawn(layout: Topology) -> str:
    """`6,144 processes on 768 nodes, 16 of them drawn: those of the first replica`."""
    nodes = drawn_nodes(layout)
    processes = f"{layout.world_size:,} process{'es' if layout.world_size > 1 else ''}"
    text = f"{processes} on {layout.nodes:,} node{'s' if layout.nodes > 1 else ''}"
    if len(nodes) == layout.nodes:
        return text
    which = "the first" if len(nodes) == MOST_NODES else "those"
    return f"{text}, {len(nodes)} of them drawn: {which} of the first replica"


def layers_text(chunks: Sequence[LayerRange]) -> str:
    """`0-3 | 8-11`: the layers of each model chunk of a stage."""
    return " | ".join(str(each) for each in chunks)


def node_svg(layout: Topology, node: int, *, styled: bool = True) -> str:
    """One node."""
    width, height = _node_size(layout)
    return drawing(_node_name(layout, node), width, height, *_node(layout, node), styled=styled, class_="node")


def ranks_svg(layout: Topology) -> str:
    """The nodes in a grid, in one drawing."""
    nodes = drawn_nodes(layout)
    width, height = _node_size(layout)
    across = min(len(nodes), _COLUMNS)
    head = 26
    name = what_is_drawn(layout)
    boxes = [
        element(
            "g",
            title(_node_name(layout, node)),
            *_node(layout, node),
            transform=f"translate({place % across * (width + 10)},{head + place // across * (height + 10)})",
        )
        for place, node in enumerate(nodes)
    ]
    label = element("text", text=name, x=2, y=15, font_size=13, class_="ink")
    total = max(across * (width + 10) - 10, 8 * len(name))
    rows = -(-len(nodes) // across)
    return drawing(name, total, head + rows * (height + 10) - 10, label, *boxes)


def _ranks_of(layout: Topology, node: int) -> tuple[Rank, ...]:
    per_node = layout.processes_per_node
    return layout.ranks[node * per_node : (node + 1) * per_node]


def _node_name(layout: Topology, node: int) -> str:
    ranks = _ranks_of(layout, node)
    return f"Node {node}: ranks {ranks[0].rank} to {ranks[-1].rank}" if len(ranks) > 1 else f"Node {node}: rank {node}"


def _node_size(layout: Topology) -> tuple[int, int]:
    columns = min(layout.processes_per_node, _COLUMNS)
    rows = -(-layout.processes_per_node // columns)
    width = 2 * _PADDING + columns * _CELL_WIDTH + (columns - 1) * _GAP
    return max(width, 96), _HEAD + rows * (_CELL_HEIGHT + _GAP) - _GAP + _PADDING


def _node(layout: Topology, node: int) -> Iterator[str]:
    width, height = _node_size(layout)
    yield element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=6, class_="panel")
    yield element("text", text=f"node {node}", x=_PADDING, y=16, font_size=12, class_="ink b")
    ranks = _ranks_of(layout, node)
    for place, rank in enumerate(ranks):
        yield _cell(layout, rank, place)
    if layout.tensor_model_parallel_size > 1:
        yield from _outlines(layout, ranks)


def _place(place: int) -> tuple[int, int]:
    """Where the cell of a node's GPU begins."""
    row, column = divmod(place, _COLUMNS)
    return _PADDING + column * (_CELL_WIDTH + _GAP), _HEAD + row * (_CELL_HEIGHT + _GAP)


def _cell(layout: Topology, rank: Rank, place: int) -> str:
    x, y = _place(place)
    colour = stage_colour(rank.pp, layout.pipeline_model_parallel_size)
    middle = x + _CELL_WIDTH / 2
    experts = f", ep {rank.ep}" if layout.expert_model_parallel_size > 1 else ""
    said = (
        f"rank {rank.rank}: tp {rank.tp}, cp {rank.cp}{experts}, dp {rank.dp}, pp {rank.pp}; "
        f"node {rank.node}, GPU {rank.local_rank}; layers {layers_text(layout.stages[rank.pp])}"
    )
    others = layout.world_size > MOST_GPUS and rank.dp > 0
    return element(
        "g",
        title(said),
        element("rect", x=x, y=y, width=_CELL_WIDTH, height=_CELL_HEIGHT, rx=3, fill=colour.fill),
        element("text", text=str(rank.rank), x=middle, y=y + 16, font_size=13, class_="m b", fill=colour.ink),
        element(
            "text",
            text=f"{rank.tp},{rank.cp},{rank.dp},{rank.pp}",
            x=middle,
            y=y + 31,
            font_size=11,
            class_="m",
            fill=colour.ink,
        ),
        class_="other" if others else "",
    )


def _outlines(layout: Topology, ranks: Sequence[Rank]) -> Iterator[str]:
    """Around the GPUs of each tensor group that are on this node; dashed where others of it are on another one."""
    size = layout.tensor_model_parallel_size
    first = 0
    while first < len(ranks):
        last = min(first + size - 1 - ranks[first].tp, len(ranks) - 1)
        whole = last - first + 1 == size
        group = ranks[first].rank // size
        for start, stop in _rows(first, last):
            x, y = _place(start)
            right, bottom = _place(stop)
            yield element(
                "rect",
                title(f"tensor group {group}{'' if whole else ', which has ranks on other nodes too'}"),
                x=x - 2,
                y=y - 2,
                width=right + _CELL_WIDTH - x + 4,
                height=bottom + _CELL_HEIGHT - y + 4,
                rx=4,
                class_="outline" if whole else "outline cut",
            )
        first = last + 1


def _rows(first: int, last: int) -> list[tuple[int, int]]:
    """Cells from first to last as rectangles: whole rows in one, what is left of a row apart."""
    pieces = []
    while first <= last:
        end_of_row = first - first % _COLUMNS + _COLUMNS - 1
        if first % _COLUMNS == 0 and last > end_of_row:
            end_of_row = last - (last + 1) % _COLUMNS  # as many whole rows as there are
        stop = min(last, end_of_row)
        pieces.append((first, stop))
        first = stop + 1
    return pieces
