"""Server optimisers: how a method's direction becomes a step of the weights. One file each."""
