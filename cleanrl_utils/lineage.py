"""Keeps the copies in cleanrl/ alike: every file names its parent and may add only so many lines to it.

python -m cleanrl_utils.lineage tree                    # the family: what each child adds, and how dense it is to read
python -m cleanrl_utils.lineage check                   # the rules below; exit code 1 if one is broken (for CI)
python -m cleanrl_utils.lineage diff ppo_atari          # a child against its parent, in the terminal
python -m cleanrl_utils.lineage diff ppo dqn --html     # any two files side by side, as one offline page
python -m cleanrl_utils.lineage propagate ppo           # carry ppo.py's uncommitted change into all its descendants
python -m cleanrl_utils.lineage prove ppo               # prove that ppo.py is replayed to the bit (no name: all files)

A new file gets an entry in FAMILY below and says the same in its module docstring: `Parent: ppo.py` (a root: `none`).
Added and removed lines are counted without the module docstring, which necessarily differs, and without blank lines.

Every file: a known parent, no cycle, within budget; lines at most 120 wide, blocks at most 5 deep; no denser than the
limits in cleanrl_utils/density.py; no import from this repository at the top level, so that the file can be copied
away; a class Args that begins with the common block, which ends at the line `    # Algorithm specific arguments` and is
byte-identical everywhere.
Every child: top-level functions and classes in its parent's order; those of the same name (except Args) identical, or
with a line inside or right above that says why not, for example `# differs from ppo.py: pixels need convolutions`.
A file without a proof is no broken rule: it runs as written, and `check` says so.
"""

import argparse
import ast
import io
import os
import re
import signal
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from cleanrl_utils.git import GitError, run_git
from cleanrl_utils.lineage_diff import count_changes, html_page, unified
from cleanrl_utils.lineage_source import Family, LineageError, Source, ancestors, find, load_family

# One entry per file: its parent, and the most lines it may add to it (a root: "none", and the most lines it may have).
FAMILY = {
    "ppo.py": ("none", 400),
    "ppo_atari.py": ("ppo.py", 36),
    "ppo_atari_envpool.py": ("ppo_atari.py", 52),
    "ppo_atari_lstm.py": ("ppo_atari.py", 70),
    "ppo_atari_multigpu.py": ("ppo_atari.py", 95),
    "ppo_continuous_action.py": ("ppo.py", 48),
    "rpo_continuous_action.py": ("ppo_continuous_action.py", 6),
    "dqn.py": ("none", 350),
    "dqn_atari.py": ("dqn.py", 55),
    "dqn_jax.py": ("dqn.py", 122),
    "c51.py": ("dqn.py", 55),
    "c51_atari.py": ("c51.py", 55),
    "ddpg_continuous_action.py": ("none", 360),
    "td3_continuous_action.py": ("ddpg_continuous_action.py", 45),
    "sac_continuous_action.py": ("td3_continuous_action.py", 85),
    "sac_atari.py": ("sac_continuous_action.py", 110),
    "ppo_action_mask.py": ("ppo.py", 40),
    "ppo_pettingzoo_ma_atari.py": ("ppo_atari.py", 95),
    "ppo_procgen.py": ("ppo_atari_envpool.py", 70),
    "ppg_procgen.py": ("ppo_procgen.py", 160),
    "ppo_rnd_envpool.py": ("ppo_atari_envpool.py", 156),
    "ppo_trxl.py": ("ppo_atari_lstm.py", 285),
    "qdagger_dqn_atari_impalacnn.py": ("dqn_atari.py", 195),
    "rainbow_atari.py": ("c51_atari.py", 170),
    "pqn.py": ("ppo.py", 84),
    "pqn_atari_envpool.py": ("ppo_atari_envpool.py", 88),
    "pqn_atari_envpool_lstm.py": ("pqn_atari_envpool.py", 78),
    "dqn_atari_jax.py": ("dqn_jax.py", 75),
    "c51_jax.py": ("dqn_jax.py", 69),
    "c51_atari_jax.py": ("c51_jax.py", 80),
    "ddpg_continuous_action_jax.py": ("ddpg_continuous_action.py", 166),
    "td3_continuous_action_jax.py": ("ddpg_continuous_action_jax.py", 42),
    "sac_continuous_action_jax.py": ("td3_continuous_action_jax.py", 115),
    "ppo_atari_envpool_xla_jax.py": ("ppo_atari_envpool.py", 255),
    "ppo_atari_envpool_xla_jax_scan.py": ("ppo_atari_envpool_xla_jax.py", 68),
    "qdagger_dqn_atari_jax_impalacnn.py": ("dqn_atari_jax.py", 205),
    "ppo_jax.py": ("none", 600),
    "ppo_continuous_action_mjx.py": ("ppo_jax.py", 155),
}
BUDGETS = {name: budget for name, (_, budget) in FAMILY.items()}
MAX_WIDTH, MAX_DEPTH = 120, 5

ARGS = re.compile(r"^class Args:\n(.*?)^    # Algorithm specific arguments$", re.MULTILINE | re.DOTALL)
CONFLICT = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)


def describe(family: Family, source: Source) -> tuple[str, str, str]:
    """A file's size beside its budget, its density, and what is above its limit."""
    parent, budget = family.get(source.parent), BUDGETS.get(source.name)
    allowed = "?" if budget is None else budget
    if parent:
        size, removed = count_changes(parent, source)
        size_note = f"+{size}/-{removed} of budget {allowed}"
    else:
        size = len(source.lines)
        size_note = f"{size} lines of {allowed}"
    try:
        density_note, faults = str(source.density), [fault.partition(":")[0] for fault in source.density.problems()]
    except SyntaxError:
        density_note, faults = "does not parse", []
    if budget is not None and size > budget:
        faults.insert(0, "over budget")
    return size_note, density_note, ", ".join(faults)


def draw_tree(family: Family) -> Iterator[str]:
    def branch(name: str, lead: str, indent: str) -> Iterator[tuple[str, str]]:
        yield name, lead
        children = [child for child in family if family[child].parent == name]
        for child in children:
            tee, bar = ("└── ", "    ") if child == children[-1] else ("├── ", "│   ")
            yield from branch(child, indent + tee, indent + bar)

    rows = [row for name in family if family[name].parent not in family for row in branch(name, "", "")]
    notes = {name: describe(family, family[name]) for name, _ in rows}
    name_width = max((len(lead + name) for name, lead in rows), default=0)
    size_width = max((len(size) for size, _, _ in notes.values()), default=0)
    for name, lead in rows:
        size, density, faults = notes[name]
        yield f"{lead + name:<{name_width}}  {size:<{size_width}}  {density}  {faults}".rstrip()
    yield from (f"{name}  not drawn: its ancestors are a cycle" for name in family if name not in notes)


Problems = Iterator[tuple[int, str]]  # line number, message


def uses_jax(source: Source) -> bool:
    """Whether the file is written in JAX: it has other common flags, and is compiled, not recorded and replayed."""
    return re.search(r"^\s+import jax$", source.text, re.MULTILINE) is not None


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
    """The common block of Args is the parent's; a root's is the first root's. Files in JAX have one of their own."""
    if uses_jax(source):
        relatives = [name for name in family if uses_jax(family[name])]
    else:
        relatives = [source.parent, *(name for name in family if family[name].parent == "none"), source.name]
    model = next(family[name] for name in relatives if name in family)
    ours, theirs = ARGS.search(source.text), ARGS.search(model.text)
    if not ours:
        yield 1, "class Args has no common block: end it with the line `    # Algorithm specific arguments`"
    elif theirs and ours[1] != theirs[1]:
        first_difference = ours.start(1) + len(os.path.commonprefix([ours[1], theirs[1]]))
        line = source.text.count("\n", 0, first_difference) + 1
        yield line, f"the common block of Args is not that of {model.name}"


def check_layout(family: Family, source: Source) -> Problems:
    """Conflict markers, width, density, depth and imports."""
    for number, line in enumerate(source.lines, 1):
        if CONFLICT.match(line):
            yield number, "unresolved conflict"
        if len(line) > MAX_WIDTH:
            yield number, f"{len(line)} characters wide, {MAX_WIDTH} are allowed"
    for problem in source.density.problems():
        yield 1, problem
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


def merge(ours: str, base: str, theirs: str, labels: Sequence[str]) -> str:
    """Carries the change from base to theirs into ours; conflicts are marked."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in zip(("ours", "base", "theirs"), (ours, base, theirs)):
            Path(folder, name).write_text(text, encoding="utf-8", newline="\n")
        flags = [flag for label in labels for flag in ("-L", label)]
        conflicts = range(128)  # git returns their number, and more on an error
        return run_git("merge-file", "--stdout", *flags, "ours", "base", "theirs", cwd=Path(folder), codes=conflicts)


def propagate(family: Family, root: Path, name: str, revision: str, dry_run: bool, colour: bool) -> int:
    below = sorted((n for n in family if name in ancestors(family, n)), key=lambda n: len(ancestors(family, n)))
    if name in below:
        raise LineageError(f"{name} is in a cycle of parents: see `lineage check`")
    if marked := [n for n in (name, *below) if CONFLICT.search(family[n].text)]:
        raise LineageError(f"unresolved conflicts in {', '.join(marked)}: resolve them first")
    before = {n: family[n].text for n in below} | {name: run_git("show", f"{revision}:./cleanrl/{name}", cwd=root)}
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


def prove(sources: Sequence[Source]) -> int:
    from cleanrl_utils.accelerate import proofs  # imported here: it needs PyTorch, the other commands do not

    for source in filter(uses_jax, sources):
        print(f"{source.name}: needs no proof, as files with JAX always run as written")
    return proofs.prove([source.path for source in sources if not uses_jax(source)])


def without_proof(family: Family) -> list[str]:
    try:
        from cleanrl_utils.accelerate import proofs
    except ImportError:  # no PyTorch, as where only the rules are checked: nothing can be said about proofs
        return []
    return proofs.missing([source.path for source in family.values() if not uses_jax(source)])


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m cleanrl_utils.lineage", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="repository to work on")
    commands = parser.add_subparsers(dest="command", required=True, metavar="tree|check|diff|propagate|prove")
    commands.add_parser("tree", help="draw the family, with what each child adds and how dense it is")
    commands.add_parser("check", help="check the rules; exit code 1 if one is broken")
    sub = commands.add_parser("diff", help="show the difference of two files, or of a child from its parent")
    sub.add_argument("a", metavar="A", help="ppo, ppo.py or a path")
    sub.add_argument("b", metavar="B", nargs="?", help="likewise; without it: A against its parent")
    sub.add_argument("--html", nargs="?", const="", metavar="FILE", help="write a page (default: A_to_B.html)")
    sub = commands.add_parser("propagate", help="carry the change of a parent into all its descendants")
    sub.add_argument("file", metavar="FILE", help="the parent: ppo or ppo.py")
    sub.add_argument("--base", default="HEAD", metavar="REV", help="carry what changed since (default: HEAD)")
    sub.add_argument("--dry-run", action="store_true", help="show what would change, write nothing")
    sub = commands.add_parser("prove", help="prove that files train the same bits when they are replayed")
    sub.add_argument("files", metavar="FILE", nargs="*", help="ppo, ppo.py or a path (default: all files)")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    family = load_family(args.root)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if args.command == "tree":
        print(*draw_tree(family), sep="\n")
    elif args.command == "check":
        problems = check(family)
        print(*problems or [f"{len(family)} files, no problems"], sep="\n")
        unproven = without_proof(family)
        if unproven:
            print(f"without a proof, so run as written: {', '.join(unproven)} (see `lineage prove`)")
        return 1 if problems else 0
    elif args.command == "prove":
        return prove([find(family, name) for name in args.files] or [x for x in family.values() if not uses_jax(x)])
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
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(html_page(old, new), encoding="utf-8")
            print(f"wrote {page}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        return run(args)
    except (LineageError, GitError, OSError) as error:
        print(f"lineage: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lineage diff | head` ends quietly
    sys.exit(main())
