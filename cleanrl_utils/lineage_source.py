"""An algorithm file as cleanrl_utils.lineage sees it: its text, its parent, its definitions; and the family of them."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cleanrl_utils.density import Density, measure

DOCSTRING = re.compile(r'\A(?:\s|#.*\n)*[rR]?"""(.*?)"""', re.DOTALL)  # a pattern, as a conflicted file does not parse
PARENT = re.compile(r"^Parent: *(\S+)$", re.MULTILINE)


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
    def density(self) -> Density:
        return measure(self.text)

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
    return Source(path.resolve(), path.read_text(encoding="utf-8"))


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
    parent = family[name].parent
    while parent in family and parent not in chain:
        chain.append(parent)
        parent = family[parent].parent
    return chain
