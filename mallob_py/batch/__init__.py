"""Whole jobs on whole nodes: schedulers of rigid, moldable, malleable and evolving jobs, and their simulator.

`job` and `speedup` describe jobs. A policy (`policy`, `policies/`) sees what a scheduler may know, and gives
orders; the simulator (`simulator`) knows the truth, and checks every action. `workload/` reads and generates
workloads; `metrics` evaluates schedules.
"""
