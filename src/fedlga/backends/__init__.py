"""Where devices run: in this process, or in a pool of processes. Both give the same results to the last bit."""
