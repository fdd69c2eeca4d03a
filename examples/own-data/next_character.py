"""Next character of a text, one device an author: here, the documentation of one module of Python each.

fedlga run next_character.py
"""

import importlib
import inspect

import torch
from torch import nn

MODULES = ("argparse", "asyncio", "difflib", "inspect", "json", "logging", "shutil", "subprocess", "threading")
LENGTH, SYMBOLS = 64, 128


def data():
    """Return one dataset a device: rows of characters, and the same characters moved by one."""
    devices = {}
    for name in MODULES:
        members = inspect.getmembers(importlib.import_module(name), callable)
        texts = {inspect.getdoc(value) or "" for _, value in members}
        text = "\n".join(sorted(texts, key=lambda text: (len(text), text), reverse=True))[:6000]
        numbers = torch.tensor([min(byte, SYMBOLS - 1) for byte in text.encode()])
        rows = (len(numbers) - 1) // LENGTH
        cut = rows * LENGTH
        devices[name] = numbers[:cut].view(rows, LENGTH), numbers[1 : cut + 1].view(rows, LENGTH)
    return devices


class Reader(nn.Module):
    """A GRU that scores the next character at every position."""

    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(SYMBOLS, 16), nn.GRU(16, 64, batch_first=True)
        self.score = nn.Linear(64, SYMBOLS)

    def forward(self, characters):
        return self.score(self.gru(self.embed(characters))[0])


model = Reader
experiment = {"lr": 1.0, "clip": 5.0, "rounds": 30, "batch_size": 8, "epochs": 3, "metric": "perplexity"}
