"""How two algorithm files differ: counted, in the terminal, or side by side on one offline page."""

import difflib
import re
import string
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path

from cleanrl_utils.lineage_source import Source

WORD = re.compile(r"\w+|\s+|.")


def matcher(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher:
    return difflib.SequenceMatcher(None, old, new, autojunk=False)  # autojunk ignores frequent lines, such as `)`


def count_changes(old: Source, new: Source) -> tuple[int, int]:
    """Lines added and removed, without the module docstring, which necessarily differs, and without blank lines."""
    kept = sum(block.size for block in matcher(old.counted, new.counted).get_matching_blocks())
    return len(new.counted) - kept, len(old.counted) - kept


def unified(old: Source, new: Source, colour: bool) -> Iterator[str]:
    def paint(code: int, line: str) -> str:
        return f"\033[{code}m{line}\033[0m" if colour else line

    yield paint(1, f"--- {old.name}")
    yield paint(1, f"+++ {new.name}")
    for group in matcher(old.lines, new.lines).get_grouped_opcodes(3):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield paint(36, f"@@ -{i + 1},{i_end - i} +{j + 1},{j_end - j} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in old.lines[i1:i2])
            else:
                yield from (paint(31, f"-{line}") for line in old.lines[i1:i2])
                yield from (paint(32, f"+{line}") for line in new.lines[j1:j2])


Line = tuple[int, str]  # number, text


@cache
def alike(old: str, new: str) -> float:
    """How much two lines resemble each other; 0 where too little to show them as one line that changed."""
    ratio = matcher(WORD.findall(old.strip()), WORD.findall(new.strip())).ratio()
    return ratio if ratio >= 0.6 and old.strip() else 0.0


def face(old: list[Line], new: list[Line]) -> Iterator[tuple[list[Line], list[Line]]]:
    """Splits a changed stretch so that lines that resemble each other stand alone, side by side."""
    pairs = [(alike(a, b), i, j) for i, (_, a) in enumerate(old) for j, (_, b) in enumerate(new)]
    score, i, j = max(pairs, key=lambda pair: pair[0], default=(0.0, 0, 0))
    if score:
        yield from face(old[:i], new[:j])
        yield [old[i]], [new[j]]
        yield from face(old[i + 1 :], new[j + 1 :])
    elif old or new:
        yield old, new


def mark_words(text: str, other: str) -> str:
    """The line as HTML, with the words that the other line does not have marked."""
    words, html, end = WORD.findall(text), "", 0
    for start, _, size in matcher(words, WORD.findall(other)).get_matching_blocks():
        html += f"<mark>{escape(''.join(words[end:start]))}</mark>" if start > end else ""
        end = start + size
        html += escape("".join(words[start:end]))
    return html


def html_side(lines: list[Line], others: list[Line]) -> str:
    html = ""
    for number, text in lines:
        paired = len(lines) == len(others) == 1 and alike(text, others[0][1])
        code = mark_words(text, others[0][1]) if paired else escape(text)
        indent = len(text) - len(text.lstrip())  # a line too long for the window continues at its own indentation
        html += f'<p><i>{number}</i><code style="--indent:{indent}">{code}</code></p>'
    return html


def html_row(kind: str, old: list[Line], new: list[Line]) -> str:
    sides = html_side(old, new), html_side(new, old)
    return '<div class="row {}"><div class="old">{}</div><div class="new">{}</div></div>\n'.format(kind, *sides)


def html_page(old: Source, new: Source, context: int = 3) -> str:
    left, right = list(enumerate(old.lines, 1)), list(enumerate(new.lines, 1))
    body = ""
    for tag, i1, i2, j1, j2 in matcher(old.lines, new.lines).get_opcodes():
        was, now, size = left[i1:i2], right[j1:j2], i2 - i1
        head, tail = context * (i1 > 0), size - context * (i2 < len(left))  # no context at the ends of the file
        if tag != "equal":
            body += "".join(html_row("changed", *stretch) for stretch in face(was, now))
        elif tail - head < 3:  # not worth a click
            body += html_row("same", was, now)
        else:
            body += html_row("same", was[:head], now[:head])
            body += f"<details><summary>{tail - head} unchanged lines</summary>\n"
            body += html_row("same", was[head:tail], now[head:tail]) + "</details>\n"
            body += html_row("same", was[tail:], now[tail:])
    added, removed = count_changes(old, new)
    names = {"old": escape(old.name), "new": escape(new.name)}
    page = string.Template(Path(__file__).with_suffix(".html").read_text("utf-8"))
    return page.substitute(names, added=added, removed=removed, body=body)
