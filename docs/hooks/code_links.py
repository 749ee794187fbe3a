"""Links from a page to a line of code, by the text of the line: an edit above it does not break them.

    [`if policy_is_due`](../../cleanrl/td3_continuous_action.py)          the first line that contains this text
    [`qf_loss = `](../../cleanrl/td3_continuous_action.py#update)         the first below the definition of `update`

`#main` is `if __name__ == "__main__":`. A link whose text is no code, or the name of the file or of its
folder, leads to the file itself, or to the definition that it names. Line numbers, as in `#L123`, are ignored.
"""

import re
from collections.abc import Iterator
from pathlib import Path

# Fences and code are tokens so that nothing inside of them is taken for a link.
TOKEN = re.compile(
    r"(?P<fence>^ *(?P<mark>`{3,}|~{3,}).*?^ *(?P=mark) *$)"
    r"|(?P<code>(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^`\[\]])*)\]\((?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)",
    re.DOTALL | re.MULTILINE,
)


class LinkError(Exception):
    """A link that leads nowhere: one line for the author."""


def find_links(markdown: str) -> Iterator[re.Match]:
    """The links of a page to files, with the groups `text`, `path` and `anchor`; no images, and none inside of code."""
    for token in TOKEN.finditer(markdown):
        if token["text"] is not None and not token["image"] and token["path"]:
            if not re.match(r"\w+:", token["path"]):
                yield token


def code_of(text: str) -> str:
    """The code of a link's text that is nothing but code in backticks; else empty. A page may break or escape it."""
    found = re.fullmatch(r"`([^`]+)`", text.strip())
    return re.sub(r"\s*\n\s*", " ", found[1]).replace(r"\|", "|") if found else ""


def definition(lines: list[str], name: str) -> int | None:
    """The index of the line that defines a function, class or variable of this name."""
    patterns = [rf"\s*(async )?(def|class) {re.escape(name)}\b", rf"{re.escape(name)}\b[^=(]*="]
    if name == "main":
        patterns.append(r"if __name__ ==")
    for pattern in patterns:
        for index, line in enumerate(lines):
            if re.match(pattern, line):
                return index
    return None


def find_line(path: Path, text: str, anchor: str | None) -> int | None:
    """The number of the line that a link means; None if it means the whole file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    anchor = "" if re.fullmatch(r"L\d+(-L\d+)?", anchor or "") else anchor or ""
    start = definition(lines, anchor) if anchor else 0
    if start is None:
        raise LinkError(f"{path.name} defines no `{anchor}`")
    code = code_of(text)
    names = path.as_posix(), path.parent.as_posix()  # a package may be called by the name of its folder
    if not code or any(name.endswith("/" + code.rstrip("/")) for name in names):
        return start + 1 if anchor else None
    for index in range(start + 1 if anchor else 0, len(lines)):
        if code in lines[index]:
            return index + 1
    place = f" below the definition of `{anchor}`" if anchor else ""
    raise LinkError(f"no line of {path.name}{place} contains `{code}`")
