"""What a script prints: a log file of limited size, and the last lines of any."""

import os
import sys
from collections import deque
from pathlib import Path

from cleanrl_utils.files import replacing


class CappedLog:
    """A log file that never grows beyond its limit: it keeps its first tenth and its end, and says what is missing.

    What is written reaches the file with `flush`: of a flood between two of those, only the end touches the disk.
    """

    def __init__(self, path: Path, limit: int):
        self.path, self.limit = path, limit
        self.dropped, self.gap = 0, b""  # bytes left out, and the line that says so
        self.buffer: deque[bytes] = deque()
        self.buffered, self.flooded, self.complained = 0, False, False
        self.size = path.stat().st_size if path.exists() else 0

    def write(self, data: bytes) -> None:
        self.buffer.append(data)
        self.buffered += len(data)
        if self.size < self.limit // 10:
            self.flush()
        while self.buffer and self.buffered - len(self.buffer[0]) >= self.limit // 2:
            self.flooded = True
            self.buffered -= len(self.buffer[0])
            self.dropped += len(self.buffer.popleft())

    def flush(self) -> None:
        data = b"".join(self.buffer)
        self.buffer.clear()
        self.buffered = 0
        try:
            if self.flooded or self.size + len(data) > self.limit:
                self.rewrite(data)
            elif data:
                with open(self.path, "ab") as file:
                    file.write(data)
                self.size += len(data)
        except OSError as error:  # a full disk ends the log, not the training
            if not self.complained:
                print(f"{self.path}: {error.strerror}", file=sys.stderr)
            self.complained = True

    def rewrite(self, data: bytes) -> None:
        """Leave out the middle."""
        content = self.path.read_bytes() if self.size else b""
        if not self.flooded:
            content += data
        head, body = content[: self.limit // 10], content[self.limit // 10 + len(self.gap) :]
        if self.flooded:  # what lies between the file and the data is lost, so that all of it is one gap
            self.dropped += len(body)
            body = data
        end = body[-self.limit // 2 :]
        self.dropped += len(body) - len(end)
        self.gap = b"\n[... %d bytes left out: --max-log-mb ...]\n" % self.dropped
        with replacing(self.path, "wb") as file:
            file.write(head + self.gap + end)
        self.size, self.flooded = len(head) + len(self.gap) + len(end), False


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
