"""Published experiments with batch schedulers, and a new one: each has a `run(output, processes, traces)`.

One that takes short parts of traces, as the whole would take hours, has a fourth argument `full`.
"""
