"""Write files so that nobody ever reads half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, mode: str = "w", durable: bool = False, aside: Path | None = None) -> Iterator[IO]:
    """A file to write to, aside, which is renamed into place when it is complete; its folder is made if need be.

    With `durable` it is on the disk before. Several processes that may write at once give an `aside` of their own.
    """
    aside = aside or path.with_name(f"{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(aside, mode, newline=None if "b" in mode else "") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
