"""How dense is a file to read? Three numbers, with the limits that keep the files in cleanrl/ plain.

Only lines of code count: imports, the class Args, docstrings, comments and blank lines are left out. Clever constructs
are ternaries, walruses and star-unpackings. The published CleanRL has 9.9 tokens a line, 6% of its lines are over 100
characters, and it has 1.2 clever constructs per 100 lines.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

MAX_TOKENS = 11.0  # tokens a line
MAX_LONG = 8.0  # percent of the lines that are over LONG characters
MAX_CLEVER = 3.0  # clever constructs per 100 lines
LONG = 100

COUNTED_TOKENS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
CLEVER = (ast.IfExp, ast.NamedExpr, ast.Starred)


@dataclass(frozen=True)
class Density:
    tokens: float  # a line
    long: float  # percent of the lines
    clever: float  # per 100 lines

    def __str__(self) -> str:
        return f"{self.tokens:4.1f} tokens a line, {self.long:3.0f}% long, {self.clever:4.1f} clever"

    def problems(self) -> Iterator[str]:
        """One line for each limit that is exceeded."""
        if self.tokens > MAX_TOKENS:
            yield f"too dense: {self.tokens:.2f} tokens a line, {MAX_TOKENS:g} are allowed"
        if self.long > MAX_LONG:
            yield f"too many long lines: {self.long:.1f}% are over {LONG} characters, {MAX_LONG:g}% are allowed"
        if self.clever > MAX_CLEVER:
            constructs = "ternaries, walruses and star-unpackings"
            yield f"too clever: {self.clever:.1f} {constructs} per 100 lines, {MAX_CLEVER:g} are allowed"


def is_left_out(node: ast.AST) -> bool:
    """Imports, the class Args, and strings that stand alone: docstrings."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.ClassDef):
        return node.name == "Args"
    return isinstance(node, ast.Import | ast.ImportFrom)


def measure(source: str) -> Density:
    left_out: set[int] = set()
    clever = 0
    for node in ast.walk(ast.parse(source)):
        if is_left_out(node):
            left_out.update(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, CLEVER):
            clever += 1

    tokens: Counter[int] = Counter()  # by line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type in COUNTED_TOKENS and line not in left_out:
            tokens[line] += 1
    if not tokens:
        return Density(0.0, 0.0, 0.0)

    lines = source.splitlines()
    long = sum(len(lines[line - 1]) > LONG for line in tokens)
    return Density(tokens.total() / len(tokens), 100 * long / len(tokens), 100 * clever / len(tokens))
