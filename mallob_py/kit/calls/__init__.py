"""Calls of Python functions, on their way between who wants them (`api.executor`) and workers of a job.

delivering  hands outcomes to the user's code
here        the pool that this process is a worker of, if it is one
initializing  what an executor has done in each worker first
messages    what the two say to each other
values      functions, arguments, results and exceptions as bytes
wire        messages and large buffers on a socket; both ends prove that they know the job's key
"""
