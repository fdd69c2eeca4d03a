"""Text from outside, before it reaches a record, a log or a terminal."""

from __future__ import annotations

LONGEST_TEXT = 300  # letters: a name, a reason or an error of a stranger gets no more room


def clean_text(text: object, longest: int = LONGEST_TEXT) -> str:
    """Return text in one line of moderate length, without control characters: it may come from a stranger.

    Control characters could move a terminal's cursor, colour it, or begin a line that looks like one of ours.
    """
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:longest])
