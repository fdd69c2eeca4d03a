"""A deployment's files: secrets, certificates and an app that works with this version. test_superlink.py starts one."""

from __future__ import annotations

import importlib
import importlib.util
import ssl
import stat
import sys
import tomllib

import pytest
import torch

from fedlga.backends.flower import installed
from fedlga.backends.flower.deployment import init
from fedlga.backends.flower.trial import Trial
from fedlga.core.settings import BadInput
from fedlga.experiments.flower_server import read_experiment
from fedlga.learning.task import Task
from trials import EXAMPLE_APP


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment") / "fleet"
    init(folder, nodes=2, host="aggregator.example.org", port=9443)
    return folder


def test_only_the_owner_can_read_secrets(folder):
    secrets = [folder / "ca" / "ca.key", folder / "superlink" / "superlink.key"]
    secrets += [folder / "nodes" / str(number) / "key" for number in range(2)]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secrets)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len({file.read_bytes() for file in secrets}) == 4
    assert not list((folder / "nodes").glob("*/ca.key"))


def test_the_certificate_is_signed_and_names_the_host(folder):
    from cryptography import x509

    authority = x509.load_pem_x509_certificate((folder / "nodes" / "0" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((folder / "superlink" / "superlink.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "aggregator.example.org"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "superlink" / "superlink.crt", folder / "superlink" / "superlink.key")


def load_module(monkeypatch, folder, name):
    monkeypatch.syspath_prepend(folder)
    try:
        return importlib.import_module(name)
    finally:
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name.partition(".")[0]]:
            del sys.modules[loaded]


def test_the_app_has_data_a_model_and_an_experiment(folder, monkeypatch):
    task = load_module(monkeypatch, folder / "app", "fleet_app.task")
    parts = [task.train_data({"device": device}) for device in range(2)]
    tests, labels = task.test_data()
    assert sum(len(images) for images, _ in parts) + len(tests) == 1797
    assert all(len(images) == len(targets) for images, targets in parts)
    assert task.model()(tests).shape == (len(labels), 10)
    config = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    experiment = read_experiment(config, Task(task.model, task.test_data))
    assert (experiment.method, experiment.devices, experiment.cohort, experiment.fleet) == ("fedlga", 2, 2, "real")


def test_the_example_app_has_data_and_a_model(monkeypatch):
    task = load_module(monkeypatch, EXAMPLE_APP, "unequal.task")
    model, loader = task.net(), task.load_data(1, 4)
    before = [parameter.clone() for parameter in model.parameters()]
    assert task.train(model, loader, steps=2, lr=0.1) > 0
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert 0 <= task.test(model) <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": "a b"}, "--host: got 'a b'"),
        ({"nodes": 0}, "--nodes: got 0; it takes 1 to 10000"),
        ({"port": 80}, "--port: got 80; it takes 1024 to"),
        ({"port": 65_535}, "--port: got 65535"),
    ],
)
def test_a_deployment_that_cannot_work_is_refused(changes, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        init(tmp_path / "fleet", **changes)
    assert not (tmp_path / "fleet").exists()


def test_a_deployment_takes_a_folder_of_its_own(folder, tmp_path):
    with pytest.raises(BadInput, match="is not empty"):
        init(folder)
    with pytest.raises(BadInput, match="takes no quotes"):
        init(tmp_path / 'a"b')
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        init(tmp_path / "file")


def test_a_folder_without_a_deployment_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no fleet: fedlga fleet init makes one"):
        Trial(tmp_path).port  # noqa: B018


def test_without_flower_one_line_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"flower is not installed; pip install 'fedlga\[flower\]'"):
        installed.check_installed()
