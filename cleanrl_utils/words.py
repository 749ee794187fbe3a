"""Numbers as a reader wants them."""


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def plural(count: int, thing: str) -> str:
    """1 run, 2 runs."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def all_of(count: int) -> str:
    return "both" if count == 2 else f"all {count}"
