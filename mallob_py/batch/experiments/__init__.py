"""Published experiments with batch schedulers, and a new one: each has a `run(output, processes, traces)`.

An experiment whose full size would take hours has a fourth argument `full`.
"""
