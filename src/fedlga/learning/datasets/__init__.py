"""Datasets, one file each; where they come from (sources) and where they are kept (cache)."""
