"""Devices as Flower nodes, and strategies for other people's Flower apps."""
