"""Code of the worker processes that `pool` starts. It imports only the standard library until a kind of work needs
more, as a worker may have to be restarted after every answer.
"""
