"""The four answers to a device that did not finish: wait, drop, keep, complete. One file each."""
