"""Draws sequence diagrams when the site is built, so that it needs no script and no network to be read.

The pages have them in Mermaid's words, which forges draw themselves. Here the few of those words that the pages use
become an SVG picture: `participant`, arrows (`->>`, `-->>`, and `--x` for what gets lost) and `Note over`. Any other
line is an error.
"""

import re
import textwrap
from html import escape
from typing import ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
ARROW = re.compile(r"(\w+)(->>|-->>|--x)(\w+): (.+)")
NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")

CHARACTER = 7.0  # how wide one is, roughly, at 13 pixels
LINE = 17.0
ROW = 38.0
HEAD = 30.0
PADDING = 12.0
LEAST_GAP = 110.0
NOTE_WIDTH = 150.0


class Arrow(NamedTuple):
    """Something that goes from one participant to another; both by their places from the left."""

    source: int
    target: int
    kind: str
    text: str


class Note(NamedTuple):
    """A remark over the lines of participants, from one place to another."""

    first: int
    last: int
    text: str


class Diagram(NamedTuple):
    """What happens, in order."""

    participants: list[str]
    events: list[Arrow | Note]


def parse(lines: list[str]) -> Diagram:
    """Reads a diagram.

    Raises:
        ValueError: for a line that is not understood, with that line.

    """
    names: dict[str, str] = {}
    events: list[Arrow | Note] = []
    for line in filter(None, map(str.strip, lines)):
        places = {name: place for place, name in enumerate(names)}
        try:
            if match := PARTICIPANT.fullmatch(line):
                names[match[1]] = match[2]
            elif match := ARROW.fullmatch(line):
                events.append(Arrow(places[match[1]], places[match[3]], match[2], match[4]))
            elif match := NOTE.fullmatch(line):
                events.append(Note(places[match[1]], places[match[2] or match[1]], match[3]))
            elif line != "sequenceDiagram":
                raise ValueError(line)
        except KeyError as error:
            raise ValueError(line) from error
    return Diagram(list(names.values()), events)


def width(text: str) -> float:
    """How wide a text is with a little air around it, roughly."""
    return len(text) * CHARACTER + 2 * PADDING


def columns(diagram: Diagram) -> list[float]:
    """Where the participants' lines stand: far enough from each other for names and for what goes between them."""
    found: list[float] = []
    for place, name in enumerate(diagram.participants):
        if not place:
            found.append(max(width(name), NOTE_WIDTH) / 2)
            continue
        between = (width(diagram.participants[place - 1]) + width(name)) / 2 + PADDING
        least = [found[-1] + max(between, LEAST_GAP)]
        least += (
            found[min(event.source, event.target)] + width(event.text)
            for event in diagram.events
            if isinstance(event, Arrow) and max(event.source, event.target) == place
        )
        found.append(max(least))
    return found


def _arrow(event: Arrow, at: list[float], y: float) -> list[str]:
    start, end = at[event.source], at[event.target]
    back = 9 if start < end else -9
    dashed = "" if event.kind == "->>" else ' class="dashed"'
    if event.kind == "--x":
        end -= back
        tip = f'<path d="M{end - 5:g} {y - 5:g}l10 10m0 -10l-10 10"/>'
    else:
        tip = f'<path class="tip" d="M{end:g} {y:g}l{-back} -4.5v9z"/>'
    return [
        f'<text x="{(at[event.source] + at[event.target]) / 2:g}" y="{y - 7:g}">{escape(event.text)}</text>',
        f'<path{dashed} d="M{start:g} {y:g}H{end:g}"/>',
        tip,
    ]


def _note(event: Note, at: list[float], y: float) -> tuple[list[str], float]:
    wide = max(at[event.last] - at[event.first] + 2 * PADDING, NOTE_WIDTH)
    middle = (at[event.first] + at[event.last]) / 2
    lines = textwrap.wrap(event.text, int((wide - 2 * PADDING) / CHARACTER))
    high = len(lines) * LINE + PADDING
    box = (
        f'<rect class="note" x="{middle - wide / 2:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="4"/>'
    )
    texts = [
        f'<text x="{middle:g}" y="{y + LINE * number + LINE:g}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return [box, *texts], high


def draw(diagram: Diagram) -> str:
    """The picture, as an element of a page; how it looks is in `_static/site.css`."""
    at = columns(diagram)
    drawn: list[str] = []
    y = HEAD + ROW
    for event in diagram.events:
        if isinstance(event, Arrow):
            drawn += _arrow(event, at, y)
            y += ROW
        else:
            y -= ROW / 2
            note, high = _note(event, at, y)
            drawn += note
            y += high + ROW
    bottom = y - ROW / 2
    heads: list[str] = []
    for x, name in zip(at, diagram.participants, strict=True):
        wide = width(name)
        heads += [
            f'<path class="life" d="M{x:g} {HEAD:g}V{bottom:g}"/>',
            f'<rect x="{x - wide / 2:g}" y="1" width="{wide:g}" height="{HEAD - 1:g}" rx="4"/>',
            f'<text x="{x:g}" y="{HEAD / 2 + 5:g}">{escape(name)}</text>',
        ]
    right = at[-1] + max(width(diagram.participants[-1]), NOTE_WIDTH) / 2 + 1
    return "\n".join(
        [
            f'<svg class="sequence" role="img" viewBox="0 0 {right:g} {bottom:g}" width="{right:g}">',
            f"<title>{escape(in_words(diagram))}</title>",
            *heads,
            *drawn,
            "</svg>",
        ]
    )


def in_words(diagram: Diagram) -> str:
    """The diagram in words, for those who do not see it."""
    names = diagram.participants
    return "; ".join(
        f"{names[event.source]} to {names[event.target]}: {event.text}"
        if isinstance(event, Arrow)
        else event.text
        for event in diagram.events
    )


class Sequence(Directive):
    """A fence whose language is `mermaid`."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """The picture instead of its words."""
        try:
            picture = draw(parse(list(self.content)))
        except ValueError as error:
            raise self.error(f"not understood in a diagram: {error}") from error
        return [nodes.raw("", picture, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("mermaid", Sequence)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
