"""Where devices run: in this process, in a pool of processes, or as Flower nodes. All give the same bits."""
