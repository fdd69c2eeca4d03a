"""Built-in learning tasks, one module each, of the same form as a user's own file."""
