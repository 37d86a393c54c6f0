"""What people look at, as values: the table of runs, series of metrics, findings, samples, and a run's record.

The command line, the report, the Python API and a server print the same of these. Each is a function of events, and its
result is JSON as it is (`core.events.writable`); only `read.py` opens files.
"""
