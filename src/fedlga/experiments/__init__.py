"""Experiments: what is run (config, presets), running it (simulation, run), what it leaves (records, checkpoint)."""
