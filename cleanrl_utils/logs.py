"""What a script prints: a log file of limited size, and the last lines of any."""

import os
import sys
from pathlib import Path

from cleanrl_utils.files import replacing


class CappedLog:
    """A log file that never grows beyond its limit: it keeps its first tenth and its end, and says what is missing."""

    def __init__(self, path: Path, limit: int):
        self.path, self.limit = path, limit
        self.dropped, self.gap = 0, b""  # bytes left out, and the line that says so
        self.complained = False
        self.size = path.stat().st_size if path.exists() else 0

    def write(self, data: bytes) -> None:
        try:
            if self.size + len(data) > self.limit:
                self.leave_out_the_middle(data)
            else:
                with open(self.path, "ab") as file:
                    file.write(data)
                self.size += len(data)
        except OSError as error:  # a full disk ends the log, not the training
            if not self.complained:
                print(f"{self.path}: {error.strerror}", file=sys.stderr)
            self.complained = True

    def leave_out_the_middle(self, data: bytes) -> None:
        content = (self.path.read_bytes() if self.size else b"") + data
        head, body = content[: self.limit // 10], content[self.limit // 10 + len(self.gap) :]
        end = body[-self.limit // 2 :]
        self.dropped += len(body) - len(end)
        self.gap = b"\n[... %d bytes left out: --max-log-mb ...]\n" % self.dropped
        with replacing(self.path, "wb") as file:
            file.write(head + self.gap + end)
        self.size = len(head) + len(self.gap) + len(end)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a file, without reading all of it."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    kept = [line.rstrip()[-500:] for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(kept[-lines:])
