"""Published experiments with batch schedulers, and a new one.

Each module has a function `run(output, processes, traces)`, which also takes `full` if the experiment's full
size would take hours.
"""
