"""Files of the repository as pages, with an anchor for each line, and how a file differs from its parent."""

from functools import cache
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from cleanrl_utils.lineage_diff import matcher
from cleanrl_utils.lineage_source import Source

LEXERS = {"Dockerfile": "x.dockerfile", ".slurm_template": "x.sh", ".tf": "x.tf"}


@cache
def highlighted(name: str, text: str) -> list[str]:
    """The lines of a file as HTML."""
    known = next((alias for ending, alias in LEXERS.items() if name.endswith(ending)), name)
    try:
        lexer = get_lexer_for_filename(known, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return highlight(text, lexer, HtmlFormatter(nowrap=True)).split("\n")[: len(text.splitlines())]


def listing(name: str, text: str, parent: Source | None) -> str:
    """The whole file. Lines that its parent does not have are marked."""
    lines = highlighted(name, text)
    added = set()
    if parent:
        for tag, _, _, start, end in matcher(parent.lines, text.splitlines()).get_opcodes():
            added |= set(range(start, end)) if tag != "equal" else set()
    rows = []
    for index, line in enumerate(lines):
        kind = "line added" if index in added else "line"
        number = index + 1
        rows.append(f'<span class="{kind}" id="L{number}"><a href="#L{number}" data-n="{number}"></a>{line}\n</span>')
    return f'<div class="listing highlight"><pre><code>{"".join(rows)}</code></pre></div>'


def difference(old: Source, new: Source, old_address: str, new_address: str) -> tuple[str, int]:
    """What a file changes in its parent, with three lines around each change; and how many lines that is."""
    sides = highlighted(old.name, old.text), highlighted(new.name, new.text)
    addresses = escape(old_address, quote=True), escape(new_address, quote=True)

    def row(kind: str, side: int, index: int, other: int | None = None) -> str:
        numbers = [None, None]
        numbers[side] = index + 1
        if other is not None:
            numbers[1 - side] = other + 1
        links = ""
        for address, number in zip(addresses, numbers):
            links += f'<a href="{address}#L{number}" data-n="{number}"></a>' if number else "<a></a>"
        return f'<span class="line {kind}">{links}{sides[side][index]}\n</span>'

    rows = []
    for number, group in enumerate(matcher(old.lines, new.lines).get_grouped_opcodes(3)):
        if number:
            rows.append('<span class="line skip"></span>')
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                rows += [row("same", 1, j, i) for i, j in zip(range(i1, i2), range(j1, j2))]
            else:
                rows += [row("removed", 0, i) for i in range(i1, i2)]
                rows += [row("added", 1, j) for j in range(j1, j2)]
    html = f'<div class="listing difference highlight"><pre><code>{"".join(rows)}</code></pre></div>'
    return html, len(rows)
