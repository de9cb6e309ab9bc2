"""Self-contained HTML pages: figures are inline, without scripts or external resources."""

import base64
import html
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from leveret.analytics.job import Page, Section, number_of
from leveret.analytics.reading import Counted

SHOWN_ROWS: Final = 200
"""Maximum rows of a table on a page; all of them are in the Parquet next to it."""
STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.about { font-size: 13px; opacity: .8; }
.lead { font-size: 1.05rem; } .facts { border-left: 4px solid #0072b2; padding: .2rem 1rem .2rem 2rem; }
img { background: #fff; border-radius: 6px; max-width: 100%; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
td.n { font-variant-numeric: tabular-nums; text-align: right; } tr:nth-child(even) { background: var(--soft); }
footer { border-top: 1px solid var(--line); font-size: 13px; margin-top: 3rem; }
.bad { color: #d55e00; font-weight: 600; }
"""


def page(
    shown: Page, *, source: str, made: datetime, counted: Mapping[str, Counted], about: Sequence[str] = ()
) -> str:
    """Return a page as HTML.

    Args:
        shown: its contents.
        source: the command that made it.
        made: the time at which it was made.
        counted: counts of the input, by table.
        about: the nodes, their range of time and their rows, in words.

    """
    parts = [f"<h1>{html.escape(shown.title)}</h1>"]
    if about:
        parts.append(f'<p class="about">{"<br>".join(html.escape(line) for line in about)}</p>')
    parts.append(f'<p class="lead">{html.escape(shown.lead)}</p>')
    if shown.facts:
        parts += ['<ul class="facts">', *(f"<li>{html.escape(fact)}</li>" for fact in shown.facts), "</ul>"]
    for section in shown.sections:
        parts += _section(section)
    parts += _read(counted)
    parts.append(
        f"<footer><p><code>{html.escape(source)}</code><br>{made:%Y-%m-%d %H:%M:%S} UTC</p></footer>"
    )
    return _document(shown.title, parts)


def index(pages: Sequence[tuple[str, Page]], skipped: Mapping[str, str]) -> str:
    """Return the index page of the others.

    Args:
        pages: (directory, page), in the order to be listed.
        skipped: jobs that were not run, with the reasons.
    """
    parts = ["<h1>Reports</h1>"]
    for directory, shown in pages:
        link = f'<a href="{html.escape(directory)}/report.html">{html.escape(shown.title)}</a>'
        parts += [f"<h2>{link}</h2>", f"<p>{html.escape(shown.lead)}</p>"]
        parts += ["<ul>", *(f"<li>{html.escape(fact)}</li>" for fact in shown.facts), "</ul>"]
    if skipped:
        parts += ["<h2>Not run</h2>", "<ul>"]
        parts += [f"<li>{html.escape(name)}: {html.escape(why)}</li>" for name, why in skipped.items()]
        parts.append("</ul>")
    return _document("Leveret reports", parts)


def write(target: Path, text: str) -> None:
    """Write a file atomically: readers see the old one or the new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    unfinished.replace(target)


def value(found: Any) -> str:
    """Format a value for people: thousands separators, four significant digits, empty for null."""
    if found is None:
        return ""
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, int):
        return f"{found:,}"
    if isinstance(found, float):
        return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.4g}"  # noqa: PLR2004 - from there the decimals say nothing
    return str(found)


def _document(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return "\n".join(
        ["<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *parts, "</body></html>", ""]
    )


def _section(section: Section) -> list[str]:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.figure is not None:
        # As an image of its own, so that ids of parts in one figure do not clash with those in another.
        octets = base64.b64encode(section.figure.encode("utf-8", "replace")).decode("ascii")
        parts.append(f'<img alt="{html.escape(section.title)}" src="data:image/svg+xml;base64,{octets}">')
    if section.columns:
        parts += _table(section)
    return parts


def _table(section: Section) -> list[str]:
    if not section.rows:
        return ["<p>None.</p>"]
    parts = ['<div class="wide"><table>']
    parts.append("<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in section.columns) + "</tr>")
    for row in section.rows[:SHOWN_ROWS]:
        cells = [(row[name], html.escape(value(row[name]))) for name in section.columns]
        parts.append(
            "<tr>"
            + "".join(
                f'<td class="n">{text}</td>' if isinstance(found, int | float) else f"<td>{text}</td>"
                for found, text in cells
            )
            + "</tr>"
        )
    parts.append("</table></div>")
    if len(section.rows) > SHOWN_ROWS:
        parts.append(
            f"<p>The first {SHOWN_ROWS} rows; the Parquet table next to this page has all of them.</p>"
        )
    return parts


def _read(counted: Mapping[str, Counted]) -> list[str]:
    parts = ["<h2>Input</h2>", "<ul>"]
    for name, found in sorted(counted.items()):
        text = f"{html.escape(name)}: {number_of(found.rows, 'row')}"
        if found.aside:
            reasons = ", ".join(
                f"{html.escape(why)} {number:,}" for why, number in sorted(found.aside.items())
            )
            aside = number_of(sum(found.aside.values()), "line")
            text += f'; <span class="bad">{aside} set aside</span> ({reasons})'
        parts.append(f"<li>{text}</li>")
    return [*parts, "</ul>"]
