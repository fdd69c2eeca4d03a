"""Devices in a pool of processes."""
