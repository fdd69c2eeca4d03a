"""Where tensors are computed: the one place that decides."""

from __future__ import annotations

import torch

from fedlga.core.settings import BadInput

CPU = torch.device("cpu")
TAKES = "it takes cpu, cuda, cuda:N, mps or auto"


def choose_device(name: str) -> torch.device:
    """Return the device of a name: 'auto' is a CUDA GPU, else Apple's, else the CPU; BadInput if it is not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInput(f"device: got {name!r}; {TAKES}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise BadInput(f"device: got {name!r}, and torch sees {count or 'no'} CUDA GPU here; {TAKES}")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise BadInput(f"device: got {name!r}, and torch sees no Apple GPU here; {TAKES}")
    elif str(device) != "cpu":
        raise BadInput(f"device: got {name!r}; {TAKES}")
    return device
