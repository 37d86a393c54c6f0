"""Launch scripts of verl become recipes: what a script starts is read, put into our words, and written as a recipe."""
