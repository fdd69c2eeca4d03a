"""Every built-in holds its kind's contract. What the contracts catch is in tests/cli/test_check.py."""

from __future__ import annotations

import importlib

import pytest

from fedlga.contracts import ContractBroken, check_contract, run_contract
from fedlga.core.registry import SEAMS, find
from fedlga.core.settings import BadInput

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_trackers")]

BUILT_IN = [(kind, name) for kind, seam in SEAMS.items() for name in seam.names]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_a_built_in_holds_its_contract(kind, name):
    check_contract(kind, name)


@pytest.mark.parametrize("kind", SEAMS)
def test_every_kind_has_a_contract_with_several_checks(kind):
    checks = importlib.import_module(f"fedlga.contracts.{kind}").CHECKS
    assert len(checks) >= 3
    assert len({check.__doc__ for check in checks}) == len(checks)


def test_only_data_that_is_not_here_is_left_unchecked():
    skipped = {
        (kind, name)
        for kind, name in BUILT_IN
        if kind == "dataset"
        for outcome in run_contract(kind, name)
        if outcome.skipped
    }
    assert all(find(kind, name).files for kind, name in skipped)


def test_a_broken_method_is_named_with_what_it_breaks():
    with pytest.raises(ContractBroken, match="method methods_for_tests:Short: It trains with every policy"):
        check_contract("method", "methods_for_tests:Short")


def test_unknown_kinds_and_names_are_bad_input():
    with pytest.raises(BadInput, match="KIND: there is no 'color'"):
        check_contract("color", "red")
    with pytest.raises(BadInput, match="fleet: there is no 'fast'"):
        check_contract("fleet", "fast")
