"""`python -m launcher` is `rlrun`."""

from launcher.cli.main import app

app()
