"""Words of messages."""


def counted(n: int, one: str, many: str | None = None) -> str:
    """`1 node`, `3 nodes`; `many` where it is not `one` with an s."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
