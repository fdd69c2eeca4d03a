"""The aggregator's compiled code."""
