"""Calls of Python functions, on their way between who wants them (`api.executor`) and workers of a job.

here      the pool that this process is a worker of, if it is one
messages  what the two say to each other
values    functions, arguments, results and exceptions as bytes
wire      messages and large buffers on a socket; both ends prove that they know the job's key
"""
