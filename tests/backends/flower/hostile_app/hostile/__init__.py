"""A Flower app some of whose nodes are hostile."""
