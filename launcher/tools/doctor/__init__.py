"""Checks this machine before a run is started on it; `examine.this_machine` is the list.

Every file looks at one thing. The answers are `CheckResult`s: OK, WARN or FAIL, the reason, what to do.
"""
