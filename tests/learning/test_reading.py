"""What `data()` may return, form by form; and one line for what it may not."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedlga.core.settings import BadInput
from fedlga.learning import folders
from fedlga.learning.examples import LazyExamples, TensorExamples
from fedlga.learning.reading import TaskData, read_data, read_task_data
from fedlga.learning.task import Task

X = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
Y = np.array([0, 1, 0])
FRAME = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": [1, 0, 1], "b": [4, 5, 6]})
FILES = (".npz", ".safetensors", ".csv", ".parquet")


def read(given, **parts) -> TaskData:
    return read_data(Task(lambda: nn.Linear(2, 2), None, **parts), given)


def refusal(given, **parts) -> str:
    """Return why data is refused: one line that names the function."""
    with pytest.raises(BadInput) as error:
        read(given, **parts)
    text = str(error.value)
    assert text.startswith("data(): ")
    assert len(text.splitlines()) == 1, text
    return text.removeprefix("data(): ")


def everything(examples):
    return examples.piece(0, len(examples))


class Pairs(Dataset):
    """A torch dataset of (x, y), a row at a time."""

    def __init__(self, x=X, y=Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


# Arrays


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X, Y],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.astype(np.float32), Y.astype(np.uint8)),
        (pd.DataFrame(X), pd.Series(Y)),
        (np.asfortranarray(X), Y[::-1][::-1]),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    ],
    ids=["numpy", "list", "torch", "small types", "pandas", "strides", "TensorDataset"],
)
def test_two_arrays(given):
    data = read(given)
    assert isinstance(data.train, TensorExamples)
    assert (data.test, data.parts, data.names) == (None, None, None)
    inputs, targets = everything(data.train)
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert inputs.tolist() == X.tolist()
    assert targets.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("y", "dtype", "values"),
    [
        (np.array([1, 2, 3], np.int32), torch.int64, [1, 2, 3]),
        (np.array([1, 2, 3], np.uint8), torch.int64, [1, 2, 3]),
        (np.array([True, False, True]), torch.int64, [1, 0, 1]),  # two classes
        (np.array([[True, False]] * 3), torch.float32, [[1, 0]] * 3),  # several labels an example
        (np.array([1.5, 2.5, 3.5]), torch.float32, [1.5, 2.5, 3.5]),
        (torch.tensor([1.5, 2.5, 3.5], dtype=torch.bfloat16), torch.bfloat16, [1.5, 2.5, 3.5]),
        (np.array([[1, -100], [2, 3], [0, 0]], np.int16), torch.int64, [[1, -100], [2, 3], [0, 0]]),
    ],
)
def test_targets(y, dtype, values):
    targets = read((X, y)).train.targets()
    assert targets.dtype == dtype
    assert targets.tolist() == values


def test_inputs_keep_their_kind_of_number():
    for dtype in (np.int64, np.int32, np.uint8, np.float32):
        assert str(read((X.astype(dtype), Y)).train.inputs.dtype) == f"torch.{np.dtype(dtype).name}"


def test_inputs_and_targets_may_be_trees():
    data = read(({"ids": Y, "more": (X, X[:, 0])}, (Y, X)))
    inputs, targets = data.train.batch(torch.tensor([1]))
    assert inputs["ids"].tolist() == [1]
    assert inputs["more"][0].tolist() == [[2.0, 3.0]]
    assert inputs["more"][1].tolist() == [2.0]
    assert targets[1].dtype == torch.float32
    assert len(data.train) == 3


def test_arrays_that_torch_cannot_share_are_copied():
    locked = X.copy()
    locked.flags.writeable = False
    assert read((locked, Y)).train.inputs.tolist() == X.tolist()
    assert read((X.astype(">f8"), Y.astype(">i4"))).train.inputs.tolist() == X.tolist()  # as FITS and netCDF files hold


def test_the_graph_of_a_tensor_is_left_behind():
    x = torch.ones(3, 2, requires_grad=True) * 2
    assert not read((x, Y)).train.inputs.requires_grad


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, ["got a int", "it takes (x, y)"]),
        (None, ["got a NoneType", "it takes (x, y)"]),
        ((X, Y, Y), ["got a tuple of 3", "it takes (x, y)"]),
        ((X,), ["got a tuple of 1", "it takes (x, y)"]),
        ([], ["got a list of 0", "it takes (x, y)"]),
        ({1, 2}, ["got a set", "it takes (x, y)"]),
        (len, ["got a builtin_function_or_method"]),
        (X, ["got ndarray", "it takes (x, y)"]),
        (torch.zeros(3, 2), ["got float32 of 3 x 2", "it takes (x, y)"]),
        ("nowhere/at all", ["there is no folder 'nowhere/at all'", "it takes (x, y)"]),
        (Path("nowhere"), ["there is no folder 'nowhere'"]),
        ({}, ["holds no device"]),
        ((X, Y[:2]), ["x with float32 of 3 x 2", "y with int64 of 2", "as many examples in both"]),
        (({"a": X, "b": X[:1]}, Y), ["as many examples in both"]),
        ((X[:0], Y[:0]), ["has no examples", "at least one"]),
        ((X, 1), ["y is a single number", "one row an example"]),
        ((X, np.array(["a", "b", "c"])), ["y holds text", "it takes numbers"]),
        ((X.astype(complex), Y), ["x holds complex128", "it takes numbers"]),
        ((np.where(X == 3, np.nan, X), Y), ["x holds 1 values that are not finite"]),
        ((np.where(X > 2, np.inf, X), Y), ["x holds 3 values that are not finite"]),
        ((X, np.array([1.0, np.nan, 2.0])), ["y holds 1 values that are not finite"]),
        ({"train": (X, Y), "valid": (X, Y)}, ["'valid' beside train", "a dict with train and test"]),
        ({"train": (X, Y), "test": 3}, ["test: got a int"]),
        ({"a": (X, Y), "b": None}, ["device 'b': got a NoneType"]),
        ({"a": (X, Y), "b": (X[:0], Y[:0])}, ["device 'b' has no examples"]),
        ({"a": (X, Y), "b": (X[:, :1], Y)}, ["differ in form", "float32 of 1; float32 of 2"]),
        ({"a": (X, Y), "b": Pairs()}, ["of different kinds", "one kind for all"]),
        ((X, ()), ["y"]),
        (((), Y), ["x"]),
        ((X.astype(np.longdouble), Y), ["x", "it takes"]),
    ],
)
def test_what_is_not_data_is_refused_in_one_line(given, words):
    text = refusal(given)
    for word in words:
        assert word in text


def test_lists_of_numbers_are_arrays_or_refused():
    """A list is also a tree. Two examples must not become one with two inputs."""
    try:
        data = read(([[0.0, 1.0], [2.0, 3.0]], [0, 1]))
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert data.train.targets().tolist() == [0, 1]
        assert data.train.inputs.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_devices_whose_inputs_have_other_names_are_refused():
    """A dict of inputs is spread over the model's arguments: to leave one out would go unnoticed."""
    assert "differ in form" in refusal({"a": ({"p": X}, Y), "b": ({"p": X, "q": X}, Y)})


def test_devices_with_classes_and_numbers_are_refused():
    """Joined as numbers, the classes of the first device would become a regression."""
    refusal({"a": (X, Y), "b": (X, Y * 1.5)})


def test_frames_for_training_and_testing_with_one_column_are_no_devices():
    try:
        data = read(({"train": FRAME, "test": FRAME[:1]}, "label"))
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert data.names is None
        assert (len(data.train), len(data.test)) == (3, 1)


def test_a_message_begins_with_the_task_s_file():
    task = Task(lambda: nn.Linear(2, 2), lambda: 3, source="/some/where/mine.py")
    with pytest.raises(BadInput, match=r"^mine\.py: data\(\): got a int"):
        read_task_data(task)


# Frames


def test_a_frame_and_its_target():
    inputs, targets = everything(read((FRAME, "label")).train)
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == [[1, 4], [2, 5], [3, 6]], "all other columns, in their order"
    assert targets.tolist() == [1, 0, 1]
    assert targets.dtype == torch.int64
    assert read((FRAME, "a")).train.targets().dtype == torch.float32


@pytest.mark.parametrize("kind", [str, "category", object])
def test_a_target_of_words_is_numbered_in_their_order(kind):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "kind": ["pear", "apple", "pear"]}).astype({"kind": kind})
    assert read((frame, "kind")).train.targets().tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (FRAME, ["got a frame", "it takes (frame, 'name of the target column')"]),
        ((FRAME, "lable"), ["no column 'lable'", "its columns are a, label, b"]),
        ((FRAME.assign(town=["x", "y", "z"]), "label"), ["column 'town' does not hold numbers", "get_dummies"]),
        ((FRAME.assign(a=[1.0, None, 3.0]), "label"), ["x holds 1 values that are not finite"]),
        ((FRAME.assign(label=[1.0, None, 0.0]), "label"), ["y holds 1 values that are not finite"]),
        ((FRAME.assign(label=["x", None, "y"]), "label"), ["column 'label' has empty cells"]),
        ({"train": (FRAME.astype({"label": str}), "label"), "test": (FRAME, "label")}, ["number the classes first"]),
        ({"a": (FRAME.astype({"label": str}), "label")}, ["device 'a'", "number the classes first"]),
        ((FRAME[:0], "label"), ["has no examples"]),
        ((FRAME[["label"]], "label"), ["label"]),  # nothing is left to learn from
        ((FRAME.set_axis(["a", "label", "a"], axis=1), "label"), ["'a'"]),
        ((FRAME.assign(day=pd.Timestamp("2026-01-01")), "label"), ["column 'day' does not hold numbers"]),
    ],
    ids=range(12),
)
def test_what_is_not_a_table_of_numbers_is_refused_in_one_line(given, words):
    text = refusal(given)
    for word in words:
        assert word in text


# Datasets


class WithTargets(Pairs):
    """As torchvision's datasets: all targets are in an attribute."""

    def __init__(self, targets) -> None:
        super().__init__()
        self.targets = targets
        self.read: list[int] = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


def test_a_torch_dataset_is_read_batch_by_batch():
    data = read(Pairs())
    assert isinstance(data.train, LazyExamples)
    inputs, targets = data.train.batch(torch.tensor([2, 0]))
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert inputs.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert data.train.targets().tolist() == Y.tolist()
    assert read(Pairs(y=Y * 0.5)).train.targets().dtype == torch.float32


def test_targets_in_an_attribute_are_taken_from_there():
    dataset = WithTargets(Y.tolist())
    examples = read(dataset).train
    assert examples.knows_targets
    before = len(dataset.read)
    assert examples.targets().tolist() == Y.tolist()
    assert len(dataset.read) == before, "a few were compared before, and no example is read for it now"


def test_targets_that_the_examples_contradict_are_not_taken():
    """A transform of the dataset may change them."""
    assert read(WithTargets([5, 6, 7])).train.targets().tolist() == Y.tolist()


@pytest.mark.parametrize("targets", [None, 3, [1, 2], lambda: [1, 2, 3], ["a", "b", "c"], [[1], [1, 2], [3]]])
def test_another_attribute_of_that_name_is_not_taken_for_targets(targets):
    assert read(WithTargets(targets)).train.targets().tolist() == Y.tolist()


def join_words(items):
    return torch.tensor([len(item["word"]) for item in items])[:, None].float(), torch.tensor([i["y"] for i in items])


class Words:
    """Looks like a list, and is none; its examples need a collate of the task's own."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index):
        return [{"word": "one", "y": 0}, {"word": "three", "y": 1}][index]


def test_a_task_may_make_its_own_batches():
    inputs, targets = everything(read(Words(), collate=join_words).train)
    assert inputs.tolist() == [[3.0], [5.0]]
    assert targets.tolist() == [0, 1]


def test_a_collate_of_the_task_is_called_for_a_tensor_dataset_or_refused():
    """It was given to be called. torch's own loader calls it for every dataset."""
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))

    def collate(items):
        return 10 * torch.stack([x for x, _ in items]).float(), torch.stack([y for _, y in items])

    try:
        inputs, _ = everything(read(dataset, collate=collate).train)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert inputs.tolist() == (10 * X).tolist()


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


class Fails(Pairs):
    def __getitem__(self, index):
        raise OSError("disk on fire\nand more")


class Unsized(Pairs):
    def __len__(self) -> int:
        raise RuntimeError("not known")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Endless(), ["got an IterableDataset", "a dataset with a length and rows"]),
        (Words(), ["dataset[0] is {word: str, y: int}", "(input, target)", "collate(examples)"]),
        (Fails(), ["dataset[0] failed (OSError: disk on fire"]),
        (Pairs(X[:0], Y[:0]), ["has no examples"]),
        (TensorDataset(torch.zeros(3)), ["got a tuple of 1"]),
        (Unsized(), ["not known"]),
    ],
)
def test_what_is_not_a_dataset_of_pairs_is_refused_in_one_line(dataset, words):
    text = refusal(dataset)
    for word in words:
        assert word in text


# Train and test, and one dataset a device


def test_train_and_test():
    data = read({"train": (X, Y), "test": (X[:1], Y[:1])})
    assert (len(data.train), len(data.test)) == (3, 1)
    assert data.parts is None
    assert read({"train": (X, Y), "test": None}).test is None
    assert read({"train": (X, Y)}).test is None


@pytest.mark.parametrize("kind", [TensorExamples, LazyExamples])
def test_one_dataset_a_device(kind):
    make = (lambda x, y: (x, y)) if kind is TensorExamples else Pairs
    data = read({"anna": make(X, Y), 7: make(X[:2] + 10, Y[:2])})
    assert isinstance(data.train, kind)
    assert data.names == ["anna", "7"]
    assert [part.tolist() for part in data.parts] == [[0, 1, 2], [3, 4]]
    inputs, targets = data.train.batch(torch.tensor([3, 0]))
    assert inputs.tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert targets.tolist() == [0, 0]
    assert data.train.targets().tolist() == [0, 1, 0, 0, 1]


def test_devices_that_know_their_targets_know_them_together():
    first, second = WithTargets(Y.tolist()), WithTargets(Y.tolist())
    data = read({"a": first, "b": second})
    assert data.train.knows_targets
    assert data.train.targets().tolist() == [*Y.tolist(), *Y.tolist()]


def test_a_test_set_a_device_follows_the_devices_of_the_training_data():
    train = {"a": (X, Y), "b": (X, Y)}
    data = read({"train": train, "test": {"b": (X[:1] + 5, Y[:1]), "a": (X[:2], Y[:2])}})
    assert data.names == ["a", "b"]
    assert [part.tolist() for part in data.test_parts] == [[0, 1], [2]]
    assert data.test.inputs[2].tolist() == [5.0, 6.0]
    together = read({"train": train, "test": (X, Y)})
    assert together.test_parts is None
    assert len(together.parts) == 2
    assert "not for the same devices" in refusal({"train": train, "test": {"a": (X, Y), "c": (X, Y)}})
    assert "not for the same devices" in refusal({"train": (X, Y), "test": train})


# Folders


def write_device(file: Path, x=X, y=Y) -> None:
    if file.suffix == ".npz":
        np.savez(file, x=x, y=y)
    elif file.suffix == ".safetensors":
        save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, file)
    else:
        frame = pd.DataFrame(x, columns=["a", "b"]).assign(label=y)
        frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file)


def as_given(folder: Path, suffix: str):
    """Return a folder as `data()` returns it: tables have a target column."""
    return (str(folder), "label") if suffix in (".csv", ".parquet") else folder


@pytest.mark.parametrize("suffix", FILES)
def test_a_folder_with_a_file_a_device(tmp_path, suffix):
    for name, shift in (("10", 10.0), ("9", 9.0)):
        write_device(tmp_path / f"{name}{suffix}", X + shift)
    (tmp_path / ".hidden").write_text("not a device")
    data = read(as_given(tmp_path, suffix))
    assert data.names == ["9", "10"], "numbers in their order, not in that of their digits"
    assert [part.tolist() for part in data.parts] == [[0, 1, 2], [3, 4, 5]]
    inputs, targets = everything(data.train)
    assert inputs.tolist() == [*(X + 9).tolist(), *(X + 10).tolist()]
    assert targets.tolist() == [*Y.tolist(), *Y.tolist()]


def test_two_files_of_one_device_are_both_read_or_refused(tmp_path):
    """0.npz and 0.safetensors have one name: none of them may be lost."""
    write_device(tmp_path / "0.npz")
    write_device(tmp_path / "0.safetensors", X + 10)
    try:
        data = read(tmp_path)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert len(data.train) == 6


def test_folders_for_training_and_testing(tmp_path):
    for part, rows in (("train", 3), ("test", 1)):
        (tmp_path / part).mkdir()
        for name in ("anna", "bert"):
            write_device(tmp_path / part / f"{name}.npz", X[:rows], Y[:rows])
    data = read({"train": tmp_path / "train", "test": str(tmp_path / "test")})
    assert data.names == ["anna", "bert"]
    assert [part.tolist() for part in data.test_parts] == [[0], [1]]


class Trap:
    """Raises an alarm when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("0.txt", b"", ["'", "0.txt' is not a device's data", ".npz, .safetensors, .csv, .parquet"]),
        ("0.npz", b"", ["0.npz' cannot be read"]),
        ("0.npz", b"PK\x03\x04", ["0.npz' cannot be read"]),
        ("0.npz", pickle.dumps(Trap()), ["0.npz' cannot be read"]),
        ("0.safetensors", b"", ["0.safetensors' cannot be read"]),
        ("0.safetensors", b"\x00" * 30, ["0.safetensors' cannot be read"]),
        ("0.csv", b"", ["0.csv' cannot be read"]),
        ("0.csv", b"a,label\n1,2\n3,4,5,6\n", ["0.csv' cannot be read"]),
        ("0.csv", b"\xff\xfe\x00", ["0.csv' cannot be read"]),
        ("0.parquet", b"", ["0.parquet' cannot be read"]),
        ("0.parquet", b"PAR1" + b"\0" * 20 + b"PAR1", ["0.parquet' cannot be read"]),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    text = refusal(as_given(tmp_path, Path(name).suffix))
    for word in words:
        assert word in text


def test_an_array_without_names_is_not_a_device(tmp_path):
    with (tmp_path / "0.npz").open("wb") as file:
        np.save(file, X)
    assert "0.npz' cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_needs_x_and_y(tmp_path, suffix):
    write_device(tmp_path / f"0{suffix}")
    if suffix == ".npz":
        np.savez(tmp_path / "0.npz", x=X)
    else:
        save_file({"x": torch.from_numpy(X)}, tmp_path / "0.safetensors")
    assert "holds no array" in refusal(tmp_path)
    assert "it takes arrays x and y" in refusal(tmp_path)


def test_no_pickle_is_loaded(tmp_path):
    """An array of objects is a pickle: to open it would run what it says."""
    trap = np.empty(1, object)
    trap[0] = Trap()
    np.savez(tmp_path / "0.npz", x=trap, y=Y)
    assert "0.npz' cannot be read" in refusal(tmp_path)
    with zipfile.ZipFile(tmp_path / "0.npz", "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Trap()))
        archive.writestr("y.npy", pickle.dumps(Trap()))
    refusal(tmp_path)


def valid_file(suffix: str, folder: Path) -> bytes:
    file = folder / f"valid{suffix}"
    write_device(file)
    content = file.read_bytes()
    file.unlink()
    return content


@pytest.mark.parametrize("suffix", FILES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_holds_only_bad_input_comes_out(tmp_path, suffix, data):
    """Random bytes, bytes that begin like a file of its kind, and files with a few bytes changed."""
    valid = valid_file(suffix, tmp_path)
    start = data.draw(st.sampled_from([b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04", b"PAR1", valid[:60]]))
    damaged = bytearray(valid)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(valid) - 1), st.integers(0, 255)), max_size=4)):
        damaged[place] = value
    cut = bytes(damaged[: data.draw(st.integers(0, len(valid)))])
    content = data.draw(
        st.one_of(st.binary(max_size=200).map(lambda b: start + b), st.just(bytes(damaged)), st.just(cut))
    )
    (tmp_path / f"0{suffix}").write_bytes(content)
    try:
        read(as_given(tmp_path, suffix))
    except BadInput as error:
        assert len(str(error).splitlines()) == 1


def write_image(file: Path, value: int, size=(4, 3), mode: str = "L") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(file)


@pytest.fixture
def images(tmp_path) -> Path:
    """Two devices; cats are class 0 and dogs class 1, also on the device that has dogs alone."""
    write_image(tmp_path / "anna" / "cat" / "1.png", 255)
    write_image(tmp_path / "anna" / "dog" / "1.png", 0)
    write_image(tmp_path / "bert" / "dog" / "2.PNG", 51)
    (tmp_path / "bert" / "dog" / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("kind", [TensorExamples, LazyExamples])
def test_a_folder_of_images(images, kind, monkeypatch):
    if kind is LazyExamples:
        monkeypatch.setattr(folders, "MOST_IN_MEMORY", 0)
    data = read(images)
    assert isinstance(data.train, kind)
    assert data.names == ["anna", "bert"]
    assert [part.tolist() for part in data.parts] == [[0, 1], [2]]
    inputs, targets = everything(data.train)
    assert inputs.shape == (3, 1, 3, 4), "channels, height, width"
    assert inputs.dtype == torch.float32
    assert inputs[:, 0, 0, 0].tolist() == pytest.approx([1.0, 0.0, 51 / 255])
    assert targets.tolist() == data.train.targets().tolist() == [0, 1, 1]


def test_colours_come_first(tmp_path):
    write_image(tmp_path / "a" / "cat" / "1.jpg", 51, mode="RGB")
    write_image(tmp_path / "a" / "cat" / "2.png", 51, mode="RGB")
    inputs, _ = everything(read(tmp_path).train)
    assert inputs.shape == (2, 3, 3, 4)
    assert inputs[1, :, 0, 0].tolist() == pytest.approx([0.2, 0.0, 1.0])


def test_images_of_sixteen_bits_keep_their_shades_or_are_refused(tmp_path):
    """Medical images: cut off at 255 of 65535, they would all be white."""
    folder = tmp_path / "a" / "cat"
    folder.mkdir(parents=True)
    for i, value in enumerate((1000, 30000)):
        Image.fromarray(np.full((3, 4), value, np.uint16)).save(folder / f"{i}.png")
    try:
        inputs, _ = everything(read(tmp_path).train)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert inputs[0].max() < inputs[1].min()


def test_images_that_do_not_fit_are_named_in_one_line(images):
    write_image(images / "bert" / "dog" / "3.png", 0, size=(5, 5))
    assert "images of one size" in refusal(images)
    (images / "bert" / "dog" / "3.png").write_bytes(b"\x89PNG nothing")
    assert "3.png' cannot be read as an image" in refusal(images)


def test_a_folder_without_images_is_refused(tmp_path):
    assert "holds no device" in refusal(tmp_path)
    (tmp_path / "anna").mkdir()
    assert "takes DEVICE/CLASS/*.png" in refusal(tmp_path)
    (tmp_path / "anna" / "cat").mkdir()
    assert "holds no images" in refusal(tmp_path)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 60), value=st.integers(0, 255), end=st.integers(0, 80))
def test_whatever_an_image_holds_only_bad_input_comes_out(tmp_path, place, value, end):
    file = tmp_path / "a" / "cat" / "1.png"
    write_image(file, 100)
    content = bytearray(file.read_bytes())
    content[place] = value
    file.write_bytes(bytes(content[:end]))
    try:
        read(tmp_path)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1


# Hugging Face's datasets, Flower's partitioners


@pytest.fixture(scope="module")
def table():
    """Six rows of a Hugging Face dataset: an input of two numbers, another number and a label."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = range(6)
    return datasets.Dataset.from_dict(
        {"x": [[float(i), 1.0] for i in rows], "n": [i / 2 for i in rows], "y": [i % 2 for i in rows]}
    )


def test_a_hugging_face_dataset(table):
    examples = read((table.remove_columns("n"), "y")).train
    assert isinstance(examples, LazyExamples)
    inputs, targets = examples.batch(torch.tensor([3, 0]))
    assert inputs.tolist() == [[3.0, 1.0], [0.0, 1.0]], "a single other column is the input itself"
    assert inputs.dtype == torch.float32
    assert targets.tolist() == [1, 0]
    assert examples.targets().tolist() == [0, 1] * 3
    assert examples.knows_targets
    both, numbers = read((table, "n")).train.batch(torch.tensor([5]))
    assert both.keys() == {"x", "y"}
    assert numbers.tolist() == [2.5]
    assert numbers.dtype == torch.float32


def test_a_hugging_face_dataset_with_a_collate_of_the_task(table):
    def collate(items):
        return torch.tensor([[item["n"]] for item in items]), torch.tensor([item["y"] for item in items])

    inputs, targets = read(table, collate=collate).train.piece(0, 2)
    assert inputs.tolist() == [[0.0], [0.5]]
    assert targets.tolist() == [0, 1]


def test_hugging_face_datasets_that_are_refused(table):
    assert "got a dataset with columns x, n, y; it takes (dataset, 'name of the target column')" in refusal(table)
    assert "no column 'label'; its columns are x, n, y" in refusal((table, "label"))
    assert "has no examples" in refusal((table.select([]), "y"))


def test_a_partitioner_of_flower_datasets(table):
    partitioner_of = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioner_of.IidPartitioner(num_partitions=3)
    assert "Partitioner cannot be used" in refusal((partitioner, "y")), "it has no dataset yet"
    partitioner.dataset = table.remove_columns("n")
    data = read((partitioner, "y"))
    assert data.names == ["0", "1", "2"]
    assert [part.tolist() for part in data.parts] == [[0, 1], [2, 3], [4, 5]]
    inputs, _ = everything(data.train)
    assert sorted(inputs[:, 0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert len(data.train.targets()) == 6


def test_hugging_face_datasets_for_training_and_testing(table):
    data = read({"train": (table, "y"), "test": (table.select([1, 3]), "y")})
    assert data.test.targets().tolist() == [1, 1]


def test_splits_of_hugging_face_are_train_and_test_and_no_devices(table):
    """`(load_dataset(...), "label")`: a test set that trains as a device would go unnoticed."""
    splits = pytest.importorskip("datasets").DatasetDict(
        {"train": table.remove_columns("n"), "test": table.remove_columns("n").select([1, 3])}
    )
    try:
        data = read((splits, "y"))
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert data.names is None
        assert (len(data.train), len(data.test)) == (6, 2)
    both = read({"train": (splits["train"], "y"), "test": (splits["test"], "y")})
    assert (len(both.train), len(both.test), both.names) == (6, 2, None)


def test_a_file_like_object_is_not_data():
    assert "got a BytesIO" in refusal(io.BytesIO(b""))
