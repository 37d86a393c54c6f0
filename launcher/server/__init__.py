"""`rlrun serve`: a job API, live updates and a page over run folders.

A server reads run folders and calls what the command line calls. Folders are the source of truth: its database holds
what they do not (names, notes, tags, keys of requests) and can be rebuilt.
"""
