"""The federated methods, one file a paper. Their names are in `fedlga.core.registry`."""
