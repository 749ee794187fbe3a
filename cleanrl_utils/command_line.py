"""Read the command line with tyro, and tell a mistake in it in one line instead of a box."""

import contextlib
import functools
import io
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tyro


def parse(args_class: Any, **options: Any) -> Any:
    """`tyro.cli`, for a class."""
    with one_line_errors():
        return tyro.cli(args_class, **options)


def run(main: Callable, **options: Any) -> Any:
    """`tyro.cli`, for a function, which is called only once all its arguments have been read."""
    from cleanrl_utils.crash import forgive_closed_pipes  # not at the top: it imports much

    forgive_closed_pipes()

    @functools.wraps(main)
    def prepare(*args: Any, **kwargs: Any) -> Callable:
        return functools.partial(main, *args, **kwargs)

    return parse(prepare, **options)()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Inside of it, a box of tyro becomes one line; anything else on stderr, such as a warning, stays as it is."""
    printed = io.StringIO()
    is_mistake = False
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as error:
        is_mistake = error.code == 2  # with --help it is 0
        raise
    finally:
        text = printed.getvalue()
        if sys.stderr:  # none, if it is closed
            sys.stderr.write(shortened(text) + "\n" if is_mistake else text)


def shortened(box: str) -> str:
    """What a box of tyro says, in a line: its first paragraph, and the flags that may have been meant."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    if not lines:
        return box.rstrip()
    paragraphs = [" ".join(part.split()) for part in re.split(r"^─+$", "\n".join(lines), flags=re.MULTILINE)]
    similar = [re.findall(r"(?<!\S)--[\w-]+", part) for part in paragraphs if part.startswith("Perhaps you meant")]
    command = re.search(r"(?:run|see) (.*--help)", paragraphs[-1])
    line = paragraphs[0].rstrip(".")
    if similar and similar[0]:
        line += f"; perhaps you meant {' or '.join(dict.fromkeys(similar[0]))}"
    return f"{line} (all flags: {command[1]})" if command else line
