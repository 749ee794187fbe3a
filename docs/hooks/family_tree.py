"""The family of the algorithm files: a picture of it, and tables of variants."""

import re
from collections.abc import Callable
from html import escape

from cleanrl_utils.lineage_diff import count_changes
from cleanrl_utils.lineage_source import DOCSTRING, Family, Source, ancestors

ROW, GAP, BOX, PAD = 32, 34, 24, 9  # height of a row, room between columns, height of a box, room beside its text
LETTER = 7.0  # width of a letter; the font is of fixed width

Address = Callable[[str], str]  # from the name of a file to the address of its page


def summary(source: Source) -> str:
    """The first sentence of the module's docstring, which says what the file is."""
    docstring = DOCSTRING.match(source.text)
    first = docstring[1].strip().partition("\n\n")[0] if docstring else ""
    return re.sub(r"\s+", " ", first)


def stem(source: Source) -> str:
    return source.name.removesuffix(".py")


def children(family: Family, name: str) -> list[str]:
    """In the order of how much of the family is below them, so that a picture is calm."""
    return sorted((n for n in family if family[n].parent == name), key=lambda n: (len(descendants(family, n)), n))


def descendants(family: Family, name: str) -> list[str]:
    return [n for n in family if name in ancestors(family, n)]


def changes(family: Family, source: Source) -> str:
    """How much a file adds to its parent and removes from it; of a root, its length."""
    if source.parent not in family:
        return f"{len(source.lines)} lines"
    added, removed = count_changes(family[source.parent], source)
    return f"+{added} −{removed}"


def variants(family: Family, root: str, address: Address) -> str:
    """A table of a file and all its descendants, parents first, as Markdown."""

    def link(file: str) -> str:
        return f"[<code>{file.replace('_', '_<wbr>')}</code>]({address(file)})"  # a long name may be broken

    rows = [
        '<div class="variants" markdown data-search-exclude>',
        "",
        "| file | parent | lines added | what it is |",
        "|---|---|---|---|",
    ]

    def visit(name: str) -> None:
        source = family[name]
        parent = link(source.parent) if source.parent in family else ""
        rows.append(f"| {link(name)} | {parent} | {changes(family, source)} | {summary(source)} |")
        for child in sorted(n for n in family if family[n].parent == name):
            visit(child)

    visit(root)
    return "\n".join([*rows, "", "</div>"])


def kind(name: str) -> str:
    """The class of a box, which has the colour of its methods."""
    if name.startswith(("ppo", "ppg", "rpo")):
        return "policy-gradient"
    return "q-learning" if name.startswith(("dqn", "c51", "pqn", "rainbow", "qdagger")) else "actor-critic"


def tree(family: Family, address: Address) -> str:
    """The whole family as one picture: parents to the left of their children."""
    depth = {name: len(ancestors(family, name)) for name in family}
    columns = [max(len(stem(family[n])) for n in family if depth[n] == d) for d in range(max(depth.values()) + 1)]
    widths = [longest * LETTER + 2 * PAD for longest in columns]
    lefts = [sum(widths[:d]) + GAP * d + 1 for d in range(len(widths))]
    middles: dict[str, float] = {}
    rows = 0.0

    def place(name: str) -> float:
        """A leaf takes the next row; a parent stands beside the first of its children."""
        nonlocal rows
        below = [place(child) for child in children(family, name)]
        if not below:
            rows += 1
        middles[name] = below[0] if below else (rows - 0.5) * ROW
        return middles[name]

    for root in sorted(
        (n for n in family if family[n].parent not in family), key=lambda n: -len(descendants(family, n))
    ):
        place(root)
        rows += 0.5  # room between families
    height = rows * ROW
    parts = []
    for name, source in family.items():
        middle = middles[name]
        if source.parent in family:
            start = lefts[depth[name] - 1] + len(source.parent.removesuffix(".py")) * LETTER + 2 * PAD
            turn, end = lefts[depth[name]] - GAP / 2, lefts[depth[name]]
            parts.append(f'<path d="M{start:.0f} {middles[source.parent]:.0f}H{turn:.0f}V{middle:.0f}H{end:.0f}"/>')
    parts = ['<g class="edges">', *parts, "</g>"]
    for name, source in family.items():
        left, width = lefts[depth[name]], len(stem(source)) * LETTER + 2 * PAD
        jax = " jax" if "import jax" in source.text else ""
        title = escape(f"{name} ({changes(family, source)}): {summary(source)}")
        parts.append(
            f'<a href="{escape(address(name), quote=True)}" class="{kind(name)}{jax}"><title>{title}</title>'
            f'<rect x="{left:.0f}" y="{middles[name] - BOX / 2:.0f}" width="{width:.0f}" height="{BOX}" rx="5"/>'
            f'<text x="{left + PAD:.0f}" y="{middles[name] + 4:.0f}" textLength="{width - 2 * PAD:.0f}">'
            f"{escape(stem(source))}</text></a>"
        )
    width = max(left + w for left, w in zip(lefts, widths)) + 1
    return (
        '<div class="family-tree">'
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="min-width:{width * 0.8:.0f}px;max-width:{width:.0f}px" '
        f'role="img" aria-label="The family tree of the algorithm files">{"".join(parts)}</svg></div>'
    )
