"""Next character of short texts, read one by one, padded to the longest of a batch; the model has dropout."""

from __future__ import annotations

import torch
from torch import nn

LETTERS = "abcdefgh"
experiment = {"devices": 8, "cohort": 5, "rounds": 3, "epochs": 3, "batch_size": 4, "lr": 0.5, "rho": 0.8, "clip": 5.0}


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 150

    def __getitem__(self, row):
        return "".join(LETTERS[(row * k + row // 7) % 8] for k in range(3, 6 + row % 6))


def data():
    return Texts()


def collate(texts):
    numbers = [torch.tensor([LETTERS.index(letter) for letter in text]) for text in texts]
    inputs = nn.utils.rnn.pad_sequence([n[:-1] for n in numbers], batch_first=True)
    targets = nn.utils.rnn.pad_sequence([n[1:] for n in numbers], batch_first=True, padding_value=-100)
    return inputs, targets


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.drop = nn.Embedding(8, 6), nn.GRU(6, 12, batch_first=True), nn.Dropout(0.2)
        self.score = nn.Linear(12, 8)

    def forward(self, characters):
        return self.score(self.drop(self.gru(self.embed(characters))[0]))


model = Reader
