"""The parts behind `api.executor`: calls of functions as one malleable job, whose workers fetch the calls.

   book    which call is where: a pure state machine
hub     the thread that talks to all workers
lane    the calls of one job, and the job
ranks   ranks of the executor's own
sinks   receivers of the outcomes: futures, the results of a map
"""
