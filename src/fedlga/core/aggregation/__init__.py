"""Aggregation rules: how the updates of a round become one vector. One file each."""
