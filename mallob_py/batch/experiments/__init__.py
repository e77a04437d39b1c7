"""Published experiments with batch schedulers, and a new one: each has a `run(output, processes, traces)`."""
