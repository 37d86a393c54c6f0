"""Environments: what answers the policy in an episode of several turns, and the processes in which it runs."""
