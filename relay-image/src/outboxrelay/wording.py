"""Numbers in messages for people, so that one of something is not told of as several. The operator uses it, too."""

from __future__ import annotations


def counted(number: int | str, one: str, many: str | None = None) -> str:
    """The number, as it is or as it was made text, with what agrees with it: `1 row`, `2 rows`.

    `many` is needed where more than an s at the end changes.
    """
    return f"{number} {one if str(number) == '1' else many or f'{one}s'}"
