"""What runs in processes of its own, apart from training: `pool` starts them. Only the standard library is loaded until
a kind of work needs more, as such a process may be started anew after every answer.
"""
