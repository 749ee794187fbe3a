"""Files that nobody ever reads half of, and JSON that may be missing or damaged."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, mode: str = "w", durable: bool = False, aside: Path | None = None) -> Iterator[IO]:
    """A file to write to, aside, which is renamed into place when it is complete.

    With `durable` it is on the disk before. Several processes that may write at once give an `aside` of their own.
    """
    aside = aside or path.with_name(f"{path.name}.tmp")
    try:
        with open(aside, mode, newline=None if "b" in mode else "") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, facts: dict, durable: bool = False, aside: Path | None = None) -> None:
    with replacing(path, durable=durable, aside=aside) as file:
        json.dump(facts, file, indent=2)


def read_json(path: Path) -> dict:
    """Empty where there is no such file, or where it is damaged."""
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
