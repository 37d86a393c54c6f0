"""Converts launch scripts of verl into recipes: reads what a script starts, translates it, and writes a recipe."""
