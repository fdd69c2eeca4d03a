"""The real sources (`make test-sources`): all that can be reached must give the same tensors."""

from __future__ import annotations

import pytest
import torch

from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.learning.datasets.cache import load

pytestmark = pytest.mark.sources


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10", "cifar-100"])
def test_every_source_that_can_be_reached_gives_the_same_tensors(name, tmp_path, monkeypatch, capsys):
    cls, loaded = find("dataset", name), {}
    for number, source in enumerate(cls.sources):
        monkeypatch.setattr(cls, "sources", (source,))
        try:
            loaded[source.name] = load(name, tmp_path / str(number))
        except BadInput as error:
            with capsys.disabled():
                print(f"\nnot reached: {error}")
    if name == "cifar-100" and not loaded:
        pytest.skip("CIFAR-100 has one source, its publisher, and it cannot be reached from here")
    assert loaded, f"no source of {name} can be reached"
    first, *others = loaded.values()
    with capsys.disabled():
        print(f"\n{name} from: {', '.join(loaded)}")
    for other in others:
        for field in ("train_images", "train_labels", "test_images", "test_labels"):
            assert torch.equal(getattr(first, field), getattr(other, field))
    # The constants that normalise are those of the training data.
    assert first.train_images.mean((0, 2, 3)).abs().max() < 1e-3
    assert (first.train_images.std((0, 2, 3)) - 1).abs().max() < 1e-3
    assert len(first.train_labels) in (50000, 60000)
    assert len(first.test_labels) == 10000
