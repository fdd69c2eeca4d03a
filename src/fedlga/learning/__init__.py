"""What is learned: datasets, partitions, models, training on a device, evaluation. It knows no federation."""
