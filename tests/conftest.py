"""Before any test is imported."""

import os

# Flower reads this when it is imported, and would tell its makers of every test.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
