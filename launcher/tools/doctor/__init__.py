"""Checks this machine, or each node of a Ray cluster, before a run is started on it.

`here` looks at this machine; `remote_probe` has every node of a cluster look at itself by `probe`, then compares them.
Every file beside them looks at one thing. The answers are `CheckResult`s: OK, WARN or FAIL, the reason, what to do.
"""
