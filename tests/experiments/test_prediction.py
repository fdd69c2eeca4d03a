"""Using a trained model: what a run folder holds for it, and that raw inputs are treated as in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga.core.settings import BadInput
from fedlga.experiments.prediction import Inputs, prepare_images
from fedlga.learning.datasets.digits import Digits
from run_folders import OLD_RUNS


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> fedlga.Run:
    folder = tmp_path_factory.mktemp("prediction") / "run"
    return fedlga.run(fedlga.preset("digits").changed({"rounds": 6}), str(folder))


def test_raw_images_are_predicted_as_well_as_the_run_says(trained):
    """The accuracy on raw pixels is the run's own, to the last image; without normalisation it is not."""
    _, (images, labels) = Digits().read(Path())
    run = fedlga.load(str(trained.folder))
    accuracy = (run.predict(images).numpy() == labels).mean()
    assert accuracy == pytest.approx(run.summary["final_accuracy"], abs=1e-9)
    raw = run.model()(torch.from_numpy(images.astype(np.float32)))
    assert (raw.argmax(1).numpy() == labels).mean() != pytest.approx(accuracy)
    assert run.scores(images).shape == (len(images), 10)
    assert torch.equal(run.predict(images[0]), run.predict(images[:1])), "one image is a batch of one"
    assert torch.equal(run.predict(images[:3, 0]), run.predict(images[:3])), "grey images need no channel"


def test_the_model_is_a_plain_module_with_the_trained_weights(trained):
    module = trained.model()
    assert type(module) is nn.Sequential
    assert not module.training
    from run_folders import read_weights

    weights = read_weights(trained.folder)
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())


def test_pixels_are_prepared_by_hand():
    """0, 127.5 and 255 are 0, 0.5 and 1; minus 0.5, divided by 0.25: -2, 0 and 2."""
    inputs = Inputs((1, 1, 3), 10, 255.0, (0.5,), (0.25,))
    assert prepare_images([[0.0, 127.5, 255.0]], inputs).flatten().tolist() == [-2.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 3, 5, 5)), "inputs: got 2 x 3 x 5 x 5; it takes images of 1 x 8 x 8, one or many"),
        (np.full((2, 1, 8, 8), 0.5), "inputs: got pixels of at most 1; it takes them as published, from 0 to 16"),
        (np.zeros((0, 1, 8, 8), dtype=np.uint8), "inputs: got none; it takes at least one"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(trained, inputs, message):
    with pytest.raises(BadInput) as caught:
        trained.predict(inputs)
    assert str(caught.value) == message


def test_a_folder_of_an_earlier_version_predicts_too(trained, tmp_path):
    """It has no inputs.json: what the inputs went through follows from its dataset."""
    shutil.copytree(trained.folder, tmp_path / "old")
    (tmp_path / "old" / "inputs.json").unlink()
    _, (images, _) = Digits().read(Path())
    assert torch.equal(fedlga.load(tmp_path / "old").predict(images), trained.predict(images))
    assert all(not (folder / "inputs.json").exists() for folder in OLD_RUNS.iterdir())


def test_a_later_version_and_a_damaged_file_are_refused(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "run")
    file = tmp_path / "run" / "inputs.json"
    later = {**json.loads(file.read_text()), "version": 2}
    for text, words in ((json.dumps(later), "of a later version of fedlga (2)"), ("{", "cannot be read")):
        file.write_text(text)
        with pytest.raises(BadInput) as caught:
            fedlga.load(tmp_path / "run").model()
        assert words in str(caught.value)
    with pytest.raises(BadInput, match="holds no run; it takes the folder of one"):
        fedlga.load(tmp_path / "nothing")
    (tmp_path / "run" / "model.safetensors").unlink()
    file.write_text((trained.folder / "inputs.json").read_text())
    with pytest.raises(BadInput, match=r"holds no model\.safetensors"):
        fedlga.load(tmp_path / "run").model()


TASK = """
import numpy as np
from torch import nn

def data():
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    return x, 2 * x[:, 0] + 1

def model():
    return nn.Linear(1, 1)

metrics = ["rmse"]
"""


def test_a_task_predicts_also_where_its_file_is_gone(tmp_path):
    (tmp_path / "line.py").write_text(TASK)
    e = fedlga.Experiment(task=str(tmp_path / "line.py"), rounds=30, devices=2, cohort=2, lr=0.1, backend="serial")
    run = fedlga.run(e, tmp_path / "run")
    (tmp_path / "line.py").unlink()
    outputs = fedlga.load(tmp_path / "run").predict(np.array([[0.0], [1.0]]))
    assert outputs.shape[0] == 2
    assert outputs.flatten().tolist() == pytest.approx([1, 3], abs=max(0.2, 3 * run.summary["final_rmse"]))


TWO_INPUTS = """
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
A, B = rng.normal(size=(600, 3)).astype(np.float32), rng.normal(size=(600, 2)).astype(np.float32)

def data():
    return INPUTS, (A.sum(1) + B.sum(1) > 0).astype(np.int64)

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, wide, narrow):
        return self.layer(torch.cat([wide, narrow], 1))

model = Both
"""


@pytest.fixture(scope="module", params=["dict", "tuple"])
def nested(request, tmp_path_factory):
    """Return a run of a task whose model has two inputs, by name or in order; and what makes inputs of two arrays."""
    folder = tmp_path_factory.mktemp(request.param)
    form = {"dict": "{'wide': A, 'narrow': B}", "tuple": "(A, B)"}[request.param]
    (folder / "two.py").write_text(TWO_INPUTS.replace("INPUTS", form))
    e = fedlga.Experiment(task=str(folder / "two.py"), rounds=3, devices=2, cohort=2, lr=0.5, backend="serial")
    fedlga.run(e, folder / "run")
    by_name = request.param == "dict"
    return fedlga.load(folder / "run"), lambda a, b: {"wide": a, "narrow": b} if by_name else (a, b)


def test_a_model_with_several_inputs_predicts(nested):
    """300 rows are more than a batch of predictions; arrays, tensors, frames and lists of rows are the same inputs."""
    import pandas as pd

    run, form = nested
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(300, 3)), rng.normal(size=(300, 2))
    layer = run.model().layer
    by_hand = layer(torch.from_numpy(np.hstack([a, b])).float()).argmax(1)
    assert torch.equal(run.predict(form(a, b)), by_hand)
    assert torch.equal(run.predict(form(torch.from_numpy(a), pd.DataFrame(b))), by_hand)
    assert torch.equal(run.predict(form(a.tolist(), [torch.from_numpy(row) for row in b])), by_hand)
    assert run.scores(form(a, b)).shape == (300, 2)


def test_nested_inputs_of_a_wrong_form_are_refused_in_a_line(nested):
    run, form = nested
    a, b = np.zeros((4, 3)), np.zeros((4, 2))
    cases = {
        "it takes as many rows in each": form(a, b[:2]),
        "inputs: got none; it takes at least one": form(a[:0], b[:0]),
        "which the model does not take (RuntimeError: mat1 and mat2 shapes": form(a, a),
        "missing 1 required positional argument: 'narrow'": {"wide": a} if isinstance(form(a, b), dict) else (a,),
        "inputs: got str; it takes an array, a tensor or a frame, or a tuple or dict of them": "a",
        "inputs: it holds rows that differ in length, or text; it takes numbers": form([[1, 2], [3]], b),
        "inputs: it is a single number; it takes one row an example": form(1.0, b),
    }
    for message, inputs in cases.items():
        with pytest.raises(BadInput) as caught:
            run.predict(inputs)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_frame_of_text_and_inputs_that_are_no_images_are_refused(trained, tmp_path):
    import pandas as pd

    with pytest.raises(BadInput, match=r"inputs: got \{a: int\}; it takes images of 1 x 8 x 8, one or many"):
        trained.predict({"a": 1})
    (tmp_path / "line.py").write_text(TASK)
    e = fedlga.Experiment(task=str(tmp_path / "line.py"), rounds=1, devices=2, cohort=2, lr=0.1, backend="serial")
    run = fedlga.run(e, tmp_path / "run")
    with pytest.raises(BadInput, match=r"inputs: the frame does not hold numbers \(could not convert"):
        run.predict(pd.DataFrame({"x": ["one", "two"]}))
    assert run.predict(pd.DataFrame({"x": [1, 2]})).shape == (2, 1)


def test_a_task_made_in_python_must_be_given(tmp_path):
    line = np.linspace(-1, 1, 40, dtype=np.float32)
    task = fedlga.Task(lambda: nn.Linear(1, 1), (line[:, None], 2 * line), name="line", metrics=["rmse"])
    run = fedlga.run(fedlga.Experiment(lr=0.1, devices=2, cohort=2, rounds=2, backend="serial"), tmp_path, task=task)
    assert run.predict(line[:3, None], task=task).shape[0] == 3
    with pytest.raises(BadInput, match="'line' was made in Python; it takes task="):
        run.predict(line[:3, None])
