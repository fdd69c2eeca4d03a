"""Trackers: each an adapter over the stream of rounds. What a tracker is stands in `fedlga.core.tracker`."""
