"""Untrusted code runs here where it can do nothing: a computation (rewards), or a shell script (import, recipes)."""
