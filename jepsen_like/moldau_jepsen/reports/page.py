"""The frame of every report: one HTML file without anything from outside."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --text: #1b2430; --soft: #5b6876; --back: #fff; --card: #f4f6f9; --edge: #dbe1e8;
  --main: #1f6fb2; --fill: #1f6fb222; --fault: #c2362b; --repair: #1f8a4c; --shade: #c2362b1c; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9ef; --soft: #98a5b3; --back: #12171d; --card: #1b222b;
  --edge: #2c3641; --main: #63aee8; --fill: #63aee822; --fault: #f0776c; --repair: #5cc98a; --shade: #f0776c22; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 1000px; padding: 24px; }
h1 { font-size: 1.6rem; margin: 0 0 .6rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .6rem; }
.verdict { font-size: 1.15rem; font-weight: 600; padding: 12px 16px; border-radius: 8px; border: 1px solid; }
.verdict.good { color: var(--repair); } .verdict.bad { color: var(--fault); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 12px 14px;
  display: flex; flex-direction: column; overflow-wrap: anywhere; }
.card b { font-size: 1.5rem; } .name, .hint { color: var(--soft); font-size: .85rem; }
.narrow { display: none; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--edge); } .line { fill: none; stroke: var(--main); stroke-width: 2; }
.c0 { --main: #1f6fb2; } .c1 { --main: #d9822b; } .c2 { --main: #1f8a4c; } .c3 { --main: #8e4ec6; }
.c4 { --main: #c2362b; } .c5 { --main: #0d9aa8; } .c6 { --main: #b5862b; } .c7 { --main: #6b7785; }
.line.dashed { stroke-dasharray: 5 3; }
.area { fill: var(--fill); } .span { fill: var(--shade); }
.mark { stroke-width: 1.5; stroke-dasharray: 4 3; } .mark.fault { stroke: var(--fault); }
.mark.repair { stroke: var(--repair); } svg .label { paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
svg .label.fault { fill: var(--fault); } svg .label.repair { fill: var(--repair); } .dot { fill: var(--main); }
.origin { color: var(--soft); font-size: .85rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--edge); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
td.words, th.words { text-align: left; }
li { color: var(--soft); } .operations li { font: .8rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; } .bar { fill: var(--main); } .bad { color: var(--fault); }
code { background: var(--card); border-radius: 4px; padding: 2px 6px; overflow-wrap: anywhere; }
details { border: 1px solid var(--edge); border-radius: 8px; padding: 8px 14px; margin: 8px 0; }
summary { cursor: pointer; }
.lane { fill: var(--fault); opacity: .75; } .lane.dark { fill: var(--soft); }
.lane.whole { fill: var(--repair); opacity: .35; } .lane.active { fill: var(--main); opacity: .35; }
.lane.shrunk { fill: #e0a030; opacity: .8; } .lane.alone { fill: #e0662f; opacity: .85; }
svg .inside { font-size: 10px; fill: var(--text); }
.key { margin-left: .8em; } .key svg { width: 14px; height: 10px; margin-right: .3em; }
.empty { color: var(--soft); }
@media (max-width: 640px) { body { padding: 14px; font-size: 15px; } h1 { font-size: 1.3rem; }
  .wide { display: none; } .narrow { display: block; } .cards { grid-template-columns: 1fr 1fr; gap: 8px; }
  .card { padding: 8px 10px; } .card b { font-size: 1.2rem; } table { font-size: .85rem; } th, td { padding: 4px 7px; }
  details { padding: 6px 8px; } ul { padding-left: 1.2rem; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a page comes from; ``moldau_jepsen.origin`` finds it out."""

    date: str
    version: str
    machine: str
    command: str

    def to_json(self) -> dict[str, str]:
        """For the document beside a page."""
        return {"date": self.date, "version": self.version, "machine": self.machine, "command": self.command}


def origin_line(origin: Origin, made: str = "") -> str:
    """Returns date, version, machine and command as HTML; ``made`` says what they were for."""
    facts = [text for text in (made, origin.date, origin.version, origin.machine) if text]
    command = f'</p>\n<p class="origin"><code>{escape(origin.command)}</code>' if origin.command else ""
    return f'<p class="origin">{escape("; ".join(facts))}{command}</p>'


def page(title: str, body: str, origin: Origin) -> str:
    """Returns a whole page; ``title`` is text, ``body`` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{origin_line(origin)}\n{body}\n</body></html>\n"
    )


def cards(entries: Iterable[tuple[str, str, str]]) -> str:
    """Returns a grid of figures: name, value and a hint, all text."""
    inner = "".join(
        f'<div class="card"><span class="name">{escape(name)}</span><b>{escape(value)}</b>'
        f'<span class="hint">{escape(hint)}</span></div>'
        for name, value, hint in entries
    )
    return f'<div class="cards">{inner}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = ()) -> str:
    """Returns a table of text; it scrolls by itself where the page is too narrow.

    The first column and those of the indexes ``words`` hold words, the others numbers.
    """

    def cell(tag: str, index: int, text: str) -> str:
        kind = ' class="words"' if index in words else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", index, column) for index, column in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", index, text) for index, text in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
