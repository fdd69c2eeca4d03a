"""Following runs in a browser: `fedlga watch`."""
