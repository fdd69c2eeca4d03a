"""Schedules: when devices start, and when the aggregator steps. One file each."""
