"""Calls of Python functions, as an executor (`api.executor`) sends them to the workers of its job.

delivering    delivery of outcomes to the user's code
here          the pool to which this process belongs as a worker, if any
initializing  an executor's initializer in each worker
messages      messages between executor and workers
sharing       objects that an executor keeps in its workers
values        functions, arguments, results and exceptions as bytes
wire          messages and large buffers on a socket; both ends prove that they know the job's key
"""
