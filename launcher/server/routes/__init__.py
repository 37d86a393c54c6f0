"""What the server answers, by subject. Each module has a `router`."""
