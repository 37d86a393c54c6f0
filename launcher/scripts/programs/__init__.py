"""Commands: what bash does itself, programs that compute text, and commands that start others."""
