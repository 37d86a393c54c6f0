"""The routes of the server, by subject. Each module has a `router`."""
