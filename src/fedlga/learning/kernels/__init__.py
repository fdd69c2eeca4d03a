"""Compiled training for the models it serves."""
