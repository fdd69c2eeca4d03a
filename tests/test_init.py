"""The package: `import fedlga` is quick, and everything in it can be had."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedlga


def test_importing_fedlga_does_not_import_torch():
    code = "import sys, fedlga; print('torch' in sys.modules, 'matplotlib' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False False\n"


@pytest.mark.parametrize("name", fedlga.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fedlga, name) is not None
    assert name in dir(fedlga)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'fedlga' has no attribute 'nothing'"):
        _ = fedlga.nothing
