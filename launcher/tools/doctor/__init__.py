"""What this machine, or each node of a Ray cluster, has to say before a run is started on it.

`here` looks at this machine; `cluster` asks every node to look at itself by `node`, then lets the nodes meet. Every
file beside them looks at one thing. Each returns `CheckResult`s.
"""
