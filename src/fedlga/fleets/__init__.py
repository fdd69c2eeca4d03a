"""Fleets: who is slow. One file each, with its settings; what a fleet is stands in `fedlga.core.fleet`."""
