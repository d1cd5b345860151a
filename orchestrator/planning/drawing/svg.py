"""SVG elements as text."""

from __future__ import annotations

from html import escape

STYLE = """
svg{font-family:system-ui,sans-serif;color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--faint:#5b6470;--line:#b9c0c8;
--panel:#f4f6f8}
@media (prefers-color-scheme:dark){svg{--paper:#15181c;--ink:#e8eaed;--faint:#a3abb5;--line:#4a525c;--panel:#20252b}}
.ink{fill:var(--ink)}.faint{fill:var(--faint)}.panel{fill:var(--panel);stroke:var(--line)}
.outline{fill:none;stroke:var(--ink);stroke-width:2}.cut{stroke-dasharray:5 3}
.other{opacity:.35}.b{font-weight:600}.m{text-anchor:middle}.e{text-anchor:end}
.hatch{stroke:var(--line);stroke-width:1.5}.axis{stroke:var(--faint)}
"""
"""Of every drawing: light and dark by what the reader's system asks for."""


def element(tag: str, *children: str, text: str = "", **attributes: str | float) -> str:
    """An element of elements and escaped text. Of an attribute's name a last _ is dropped, and another one is a -."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"' for name, value in attributes.items() if value != ""
    )
    content = "".join(children) + escape(text, quote=False)
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def title(text: str) -> str:
    """What a pointer that rests on the element it is the first child of shows, and a screen reader says."""
    return element("title", text=text)


def drawing(name: str, width: float, height: float, *children: str, styled: bool = True, **attributes: str) -> str:
    """A whole drawing with its name for those who do not see it. Not `styled`: the page around it has STYLE."""
    return element(
        "svg",
        title(name),
        *([element("style", STYLE)] if styled else []),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=name,
        width=width,
        height=height,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        **attributes,
    )


def _value(value: str | float) -> str:
    return f"{round(value, 2):g}" if isinstance(value, int | float) else escape(str(value))
