"""Contracts: what every method, policy, fleet and so on must hold. Run them on a class of your own.

from fedlga.contracts import check_contract
check_contract("fleet", "mine:MyFleet")      # raises ContractBroken with the first check that fails

On the command line: fedlga check fleet mine:MyFleet
"""

from fedlga.contracts.base import ContractBroken, Outcome, check_contract, run_contract

__all__ = ["ContractBroken", "Outcome", "check_contract", "run_contract"]
