"""Text classification, texts of unequal length: which module of Python is this documentation from?

fedlga run text_classification.py
"""

import importlib
import inspect
from zlib import crc32

import torch
from torch import nn

MODULES = ("argparse", "datetime", "decimal", "email.message", "logging", "pathlib", "sqlite3", "threading")
WORDS = 4096


def data():
    """Return a dataset of (text, label): any object with a length and rows. A row is read when a batch needs it."""
    pairs = []
    for label, name in enumerate(MODULES):
        owners = [value for _, value in inspect.getmembers(importlib.import_module(name), inspect.isclass)]
        texts = {inspect.getdoc(value) or "" for owner in owners for _, value in inspect.getmembers(owner, callable)}
        pairs += [(text, label) for text in sorted(texts) if len(text) > 40]
    return torch.utils.data.Subset(pairs, range(len(pairs)))


def collate(examples):
    """Return a batch: the words of each text as numbers, padded with zeros to the longest, and the labels."""
    texts = [torch.tensor([1 + crc32(word.encode()) % (WORDS - 1) for word in text.split()]) for text, _ in examples]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([label for _, label in examples])


def model():
    """Return the model: the mean of the words' vectors, then a score a module."""
    return nn.Sequential(nn.EmbeddingBag(WORDS, 32, padding_idx=0), nn.Linear(32, len(MODULES)))


experiment = {"lr": 5.0, "rounds": 40, "devices": 20, "partition": "dirichlet", "batch_size": 16, "target": 0.5}
