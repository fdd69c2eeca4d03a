"""Partitions: who holds which examples. One file each, with its settings."""
