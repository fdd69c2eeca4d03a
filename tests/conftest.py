"""Before any test is imported."""

import os

from hypothesis import settings

# Flower reads this when it is imported, and would tell its makers of every test.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

# The same examples every time, so that a change fails by its own fault; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))
