"""A Flower app whose devices are not equal."""
