"""Keeps the copies in cleanrl/ alike: every file names its parent and may add only so many lines to it.

python -m cleanrl_utils.lineage tree                    # the family, and what each child adds to its parent
python -m cleanrl_utils.lineage check                   # the rules below; exit code 1 if one is broken (for CI)
python -m cleanrl_utils.lineage diff ppo_atari          # a child against its parent, in the terminal
python -m cleanrl_utils.lineage diff ppo dqn --html     # any two files side by side, as one offline page
python -m cleanrl_utils.lineage propagate ppo           # carry ppo.py's uncommitted change into all its descendants

A new file gets an entry in FAMILY below and says the same in its module docstring: `Parent: ppo.py` (a root: `none`).
Added and removed lines are counted without the module docstring, which necessarily differs, and without blank lines.

Every file: a known parent, no cycle, within budget; lines at most 120 wide, blocks at most 5 deep; no import from this
repository at the top level, so that the file can be copied away; a class Args that begins with the common block, which
ends at the line `    # Algorithm specific arguments` and is byte-identical everywhere.
Every child: top-level functions and classes in its parent's order; those of the same name (except Args) identical, or
with a line inside or right above that says why not, for example `# differs from ppo.py: pixels need convolutions`.
"""

import argparse
import ast
import difflib
import io
import os
import re
import signal
import string
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from pathlib import Path

# One entry per file: its parent, and the most lines it may add to it (a root: "none", and the most lines it may have).
FAMILY = {
    "ppo.py": ("none", 340),
    "ppo_atari.py": ("ppo.py", 30),
    "ppo_atari_envpool.py": ("ppo_atari.py", 40),
    "ppo_atari_lstm.py": ("ppo_atari.py", 55),
    "ppo_atari_multigpu.py": ("ppo_atari.py", 70),
    "ppo_continuous_action.py": ("ppo.py", 35),
    "rpo_continuous_action.py": ("ppo_continuous_action.py", 5),
    "dqn.py": ("none", 300),
    "dqn_atari.py": ("dqn.py", 43),
    "c51.py": ("dqn.py", 45),
    "c51_atari.py": ("c51.py", 47),
    "ddpg_continuous_action.py": ("none", 310),
    "td3_continuous_action.py": ("ddpg_continuous_action.py", 40),
    "sac_continuous_action.py": ("td3_continuous_action.py", 70),
    "sac_atari.py": ("sac_continuous_action.py", 90),
}
BUDGETS = {name: budget for name, (_, budget) in FAMILY.items()}
MAX_WIDTH, MAX_DEPTH = 120, 5

ARGS = re.compile(r"^class Args:\n(.*?)^    # Algorithm specific arguments$", re.MULTILINE | re.DOTALL)
DOCSTRING = re.compile(r'\A(?:\s|#.*\n)*[rR]?"""(.*?)"""', re.DOTALL)  # a pattern, as a conflicted file does not parse
PARENT = re.compile(r"^Parent: *(\S+)$", re.MULTILINE)
CONFLICT = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
WORD = re.compile(r"\w+|\s+|.")


class LineageError(Exception):
    """Bad input: one line for the user, exit code 2."""


@dataclass(frozen=True)
class Source:
    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def counted(self) -> list[str]:
        return [line for line in DOCSTRING.sub("", self.text, count=1).splitlines() if line.strip()]

    @cached_property
    def parent(self) -> str:
        """A file name; "none" for a root; "" where the docstring does not say."""
        docstring = DOCSTRING.match(self.text)
        parent = PARENT.search(docstring[1]) if docstring else None
        return parent[1] if parent else ""

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        body = ast.parse(self.text).body
        return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    def definition(self, name: str) -> tuple[str, str]:
        """A definition's source, decorators included, and the comment right above it."""
        node = self.definitions[name]
        start = above = min(part.lineno for part in [node, *node.decorator_list]) - 1
        while above and self.lines[above - 1].startswith("#"):
            above -= 1
        return "\n".join(self.lines[start : node.end_lineno]), "\n".join(self.lines[above:start])


Family = dict[str, Source]  # by file name


def load(path: Path) -> Source:
    try:
        return Source(path.resolve(), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise LineageError(f"{path} is not UTF-8 text") from None


def load_family(root: Path) -> Family:
    paths = [path for path in sorted((root / "cleanrl").glob("*.py")) if path.name != "__init__.py"]
    if not paths:
        raise LineageError(f"no algorithm files in {root / 'cleanrl'}")
    return {path.name: load(path) for path in paths}


def find(family: Family, name: str) -> Source:
    """`ppo` and `ppo.py` are members of the family; anything else is a path."""
    member = name.removesuffix(".py") + ".py"
    if member not in family and not Path(name).is_file():
        raise LineageError(f"no such file: {name} (neither in cleanrl/ nor a path)")
    return family.get(member) or load(Path(name))


def ancestors(family: Family, name: str) -> list[str]:
    """Parent, grandparent, ..., root. A file in a cycle is among its own ancestors, and they are the cycle."""
    chain: list[str] = []
    while (name := family[name].parent) in family and name not in chain:
        chain.append(name)
    return chain


def matcher(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher:
    return difflib.SequenceMatcher(None, old, new, autojunk=False)  # autojunk ignores frequent lines, such as `)`


def count_changes(old: Source, new: Source) -> tuple[int, int]:
    """Lines added and removed, by the rule in the module docstring."""
    kept = sum(block.size for block in matcher(old.counted, new.counted).get_matching_blocks())
    return len(new.counted) - kept, len(old.counted) - kept


def draw_tree(family: Family) -> Iterator[str]:
    def branch(name: str, lead: str, indent: str) -> Iterator[tuple[str, str, str]]:
        parent, budget = family.get(family[name].parent), BUDGETS.get(name, "?")
        if parent:
            size, removed = count_changes(parent, family[name])
            note = f"+{size}/-{removed} of budget {budget}"
        else:
            size = len(family[name].lines)
            note = f"{size} lines of {budget}"
        yield name, lead, note + ("  over budget" if size > BUDGETS.get(name, size) else "")
        children = [child for child in family if family[child].parent == name]
        for child in children:
            tee, bar = ("└── ", "    ") if child == children[-1] else ("├── ", "│   ")
            yield from branch(child, indent + tee, indent + bar)

    rows = [row for name in family if family[name].parent not in family for row in branch(name, "", "")]
    width = max((len(lead + name) for name, lead, _ in rows), default=0)
    yield from (f"{lead + name:<{width}}  {note}" for name, lead, note in rows)
    drawn = {name for name, _, _ in rows}
    yield from (f"{name}  not drawn: its ancestors are a cycle" for name in family if name not in drawn)


Problems = Iterator[tuple[int, str]]  # line number, message


def check(family: Family) -> list[str]:
    problems: list[tuple[str, int, str]] = []
    for name, source in family.items():
        try:
            ast.parse(source.text)
        except SyntaxError as error:
            problems.append((name, error.lineno or 1, f"does not parse: {error.msg}"))
    for name, source in family.items() if not problems else ():  # the other rules need files that parse
        for rule in (check_place, check_args, check_layout, check_likeness):
            problems += [(name, line, message) for line, message in rule(family, source)]
    return [f"cleanrl/{name}:{line}: {message}" for name, line, message in sorted(problems)]


def check_place(family: Family, source: Source) -> Problems:
    """The file's place in the family: parent, cycle, budget."""
    name, parent, budget = source.name, family.get(source.parent), BUDGETS.get(source.name)
    if not source.parent:
        yield 1, "no parent: add a line `Parent: <file>.py` or `Parent: none` to the module docstring"
    elif not parent and source.parent != "none":
        yield 1, f"unknown parent: {source.parent} is not in cleanrl/"
    elif name in FAMILY and source.parent != FAMILY[name][0]:
        places = f"{source.parent} in its docstring, {FAMILY[name][0]} in FAMILY of cleanrl_utils/lineage.py"
        yield 1, f"two parents: {places}"
    chain = ancestors(family, name)
    if name in chain and name == min(chain):
        yield 1, f"cycle of parents: {' -> '.join([name, *chain])}"
    added = count_changes(parent, source)[0] if parent else 0
    if budget is None:
        yield 1, f'no budget: add `"{name}": ("{source.parent}", <lines>)` to FAMILY in cleanrl_utils/lineage.py'
    elif parent and added > budget:
        yield 1, f"over budget: adds {added} lines to {parent.name}, {budget} are allowed"
    elif not parent and len(source.lines) > budget:
        yield 1, f"too long: {len(source.lines)} lines, {budget} are allowed"


def check_args(family: Family, source: Source) -> Problems:
    """The common block of Args is the parent's; a root's is the first root's."""
    first_root = next((name for name in family if family[name].parent == "none"), source.name)
    model = family.get(source.parent, family[first_root])
    ours, theirs = ARGS.search(source.text), ARGS.search(model.text)
    if not ours:
        yield 1, "class Args has no common block: end it with the line `    # Algorithm specific arguments`"
    elif theirs and ours[1] != theirs[1]:
        first_difference = ours.start(1) + len(os.path.commonprefix([ours[1], theirs[1]]))
        line = source.text.count("\n", 0, first_difference) + 1
        yield line, f"the common block of Args is not that of {model.name}"


def check_layout(family: Family, source: Source) -> Problems:
    """Conflict markers, width, depth and imports."""
    for number, line in enumerate(source.lines, 1):
        if CONFLICT.match(line):
            yield number, "unresolved conflict"
        if len(line) > MAX_WIDTH:
            yield number, f"{len(line)} characters wide, {MAX_WIDTH} are allowed"
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if token.type == tokenize.INDENT and depth > MAX_DEPTH:
            yield token.start[0], f"{depth} blocks deep, {MAX_DEPTH} are allowed"
    siblings = {"cleanrl", "cleanrl_utils", *(name.removesuffix(".py") for name in family)}
    for statement in ast.parse(source.text).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or ast.unparse(statement).startswith("if __name__"):
            continue  # imported where it is used: fine
        for node in ast.walk(statement):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.startswith(".") or module.split(".")[0] in siblings:
                    yield node.lineno, f"top-level import of {module}: import it where it is used"


def check_likeness(family: Family, child: Source) -> Problems:
    """Definitions of the same name as the parent's: same order, same text or a reason."""
    parent = family.get(child.parent, child)
    common = [name for name in child.definitions if name in parent.definitions]
    expected = [name for name in parent.definitions if name in child.definitions]
    moved = next((ours for ours, theirs in zip(common, expected) if ours != theirs), None)
    if moved:
        yield child.definitions[moved].lineno, f"out of order: {parent.name} has {', '.join(expected)}"
    reason = re.compile(rf"differs from {re.escape(parent.name)}: *\S")
    for name in common:
        text, above = child.definition(name)
        if name != "Args" and text != parent.definition(name)[0] and not reason.search(f"{above}\n{text}"):
            why = f"make them equal or say `# differs from {parent.name}: <why>` in it"
            yield child.definitions[name].lineno, f"{name} is not that of {parent.name}: {why}"


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
    return PAGE.substitute(old=escape(old.name), new=escape(new.name), added=added, removed=removed, body=body)


PAGE = string.Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$old → $new</title>
<style>
:root { color-scheme: light dark; --page: #fff; --text: #1f2328; --faint: #767d86; --line: #d8dee4; --bar: #f6f8fa;
  --old: #ffebe9; --new: #e3fbe8; --old-mark: #ffb8b2; --new-mark: #97e8ac; --minus: #c5221f; --plus: #18793a }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --text: #dce3ea; --faint: #7d8590; --line: #262c34; --bar: #161b22;
    --old: #301a1e; --new: #12281d; --old-mark: #7b2b2f; --new-mark: #1f6035; --minus: #ff7b72; --plus: #56d364 } }
* { box-sizing: border-box; margin: 0 }
body { background: var(--page); color: var(--text); font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace }
header { position: sticky; top: 0; display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center;
  padding: 10px 16px; background: var(--bar); border-bottom: 1px solid var(--line) }
h1 { font-size: 15px } h1 span, small { color: var(--faint); font-weight: 400 }
small { font-size: 12px; flex: 1 } b.old { color: var(--minus) } b.new { color: var(--plus) }
button, summary { font: inherit; color: var(--faint); cursor: pointer }
button { padding: 2px 10px; background: none; border: 1px solid var(--line); border-radius: 6px }
button:hover, summary:hover { color: var(--text) }
summary { padding: 3px 16px; background: var(--bar); border-block: 1px solid var(--line) }
.row { display: grid; grid-template-columns: 1fr 1fr }
.row > .new { border-left: 1px solid var(--line) }
.changed > .old > p { background: var(--old) } .changed > .new > p { background: var(--new) }
p { display: flex; min-height: 1.55em }
i { flex: none; width: 6.5ch; padding-right: 3ch; position: relative; text-align: right; font-style: normal;
  color: var(--faint); user-select: none }
.changed i::after { position: absolute; right: 1ch } .changed .old i::after { content: "−"; color: var(--minus) }
.changed .new i::after { content: "+"; color: var(--plus) }
code { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; min-width: 0;
  --hang: calc(var(--indent) * 1ch + 2ch); padding-left: var(--hang); text-indent: calc(-1 * var(--hang)) }
mark { color: inherit; border-radius: 2px } .old mark { background: var(--old-mark) }
.new mark { background: var(--new-mark) }
@media (max-width: 860px) {
  body { font-size: 11px } header { padding: 8px } small { flex-basis: 100%; order: 1 }
  .row { grid-template-columns: 1fr } .row > .new { border: 0 } .same > .old { display: none } }
</style>
<header>
  <h1>$old <span>→</span> $new</h1><div><b class="new">+$added</b> <b class="old">−$removed</b></div>
  <small>docstring and blank lines not counted</small>
  <button onclick="this.open = !this.open; this.textContent = this.open ? 'Fold all' : 'Unfold all';
    document.querySelectorAll('details').forEach(fold => fold.open = this.open)">Unfold all</button>
</header>
<main>
$body
</main>
</html>
""")


def git(folder: Path, *arguments: str, codes: Sequence[int] = (0,)) -> str:
    try:
        result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        raise LineageError("git is not installed") from None
    if result.returncode not in codes:
        raise LineageError(result.stderr.partition("\n")[0].removeprefix("fatal: "))
    return result.stdout


def merge(ours: str, base: str, theirs: str, labels: Sequence[str]) -> str:
    """Carries the change from base to theirs into ours; conflicts are marked."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in zip(("ours", "base", "theirs"), (ours, base, theirs)):
            Path(folder, name).write_text(text, encoding="utf-8", newline="\n")
        flags = [flag for label in labels for flag in ("-L", label)]
        conflicts = range(128)  # git returns their number, and more on an error
        return git(Path(folder), "merge-file", "--stdout", *flags, "ours", "base", "theirs", codes=conflicts)


def propagate(family: Family, root: Path, name: str, revision: str, dry_run: bool, colour: bool) -> int:
    below = sorted((n for n in family if name in ancestors(family, n)), key=lambda n: len(ancestors(family, n)))
    if name in below:
        raise LineageError(f"{name} is in a cycle of parents: see `lineage check`")
    if marked := [n for n in (name, *below) if CONFLICT.search(family[n].text)]:
        raise LineageError(f"unresolved conflicts in {', '.join(marked)}: resolve them first")
    before = {n: family[n].text for n in below} | {name: git(root, "show", f"{revision}:./cleanrl/{name}")}
    after = {name: family[name].text}
    if before[name] == after[name]:
        print(f"{name} has not changed since {revision}: nothing to propagate")
        return 0
    for child in below:  # parents first; what is below a conflict has no entry in `after`
        parent = family[child].parent
        if parent in after and not CONFLICT.search(after[parent]):
            labels = child, f"{parent} before", f"{parent} now"
            after[child] = merge(before[child], before[parent], after[parent], labels)
    changed = [child for child in below if child in after and after[child] != before[child]]
    for child in changed:
        if dry_run:
            print(*unified(family[child], Source(family[child].path, after[child]), colour), sep="\n")
        else:
            family[child].path.write_text(after[child], encoding="utf-8")
    changes = "would change" if dry_run else "changed"
    print(f"{name} since {revision}: {len(changed)} of {len(below)} descendants {changes}")
    conflicts = [
        f"cleanrl/{child}:{number}"
        for child in changed
        for number, line in enumerate(after[child].splitlines(), 1)
        if line.startswith("<<<<<<< ")
    ]
    for place in conflicts:
        print(f"conflict: {place}")
    for child in below:
        if child not in after:
            print(f"skipped: cleanrl/{child}: below a conflict; once it is resolved, propagate {family[child].parent}")
    return 1 if conflicts else 0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m cleanrl_utils.lineage", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="repository to work on")
    commands = parser.add_subparsers(dest="command", required=True, metavar="tree|check|diff|propagate")
    commands.add_parser("tree", help="draw the family, with the lines each child adds and removes")
    commands.add_parser("check", help="check the rules; exit code 1 if one is broken")
    sub = commands.add_parser("diff", help="show the difference of two files, or of a child from its parent")
    sub.add_argument("a", metavar="A", help="ppo, ppo.py or a path")
    sub.add_argument("b", metavar="B", nargs="?", help="likewise; without it: A against its parent")
    sub.add_argument("--html", nargs="?", const="", metavar="FILE", help="write a page (default: A_to_B.html)")
    sub = commands.add_parser("propagate", help="carry the change of a parent into all its descendants")
    sub.add_argument("file", metavar="FILE", help="the parent: ppo or ppo.py")
    sub.add_argument("--base", default="HEAD", metavar="REV", help="carry what changed since (default: HEAD)")
    sub.add_argument("--dry-run", action="store_true", help="show what would change, write nothing")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    family = load_family(args.root)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if args.command == "tree":
        print(*draw_tree(family), sep="\n")
    elif args.command == "check":
        problems = check(family)
        print(*problems or [f"{len(family)} files, no problems"], sep="\n")
        return 1 if problems else 0
    elif args.command == "propagate":
        source = find(family, args.file)
        if family.get(source.name) != source:
            raise LineageError(f"{args.file} is not in {args.root / 'cleanrl'}")
        return propagate(family, args.root, source.name, args.base, args.dry_run, colour)
    elif args.command == "diff":
        new = find(family, args.b or args.a)
        if not args.b and new.parent not in family:
            raise LineageError(f"{new.name} has no parent in cleanrl/: name a second file")
        old = find(family, args.a if args.b else new.parent)
        if args.html and not args.html.endswith(".html"):  # `diff --html ppo.py dqn.py` must not overwrite ppo.py
            raise LineageError(f"--html writes a .html file, not {args.html}")
        if args.html is None:
            print(*unified(old, new, colour), sep="\n")
        else:
            page = Path(args.html or f"{old.path.stem}_to_{new.path.stem}.html")
            page.write_text(html_page(old, new), encoding="utf-8")
            print(f"wrote {page}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        return run(args)
    except (LineageError, OSError) as error:
        print(f"lineage: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lineage diff | head` ends quietly
    sys.exit(main())
