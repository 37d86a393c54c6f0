"""Reads launch scripts that other people wrote, as bash would. Knows nothing of rlrun's settings and of verl's keys."""
