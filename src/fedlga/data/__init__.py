"""Data: where it comes from, what it is, who holds what."""
