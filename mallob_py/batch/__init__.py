"""Whole jobs on whole nodes: schedulers of rigid, moldable, malleable and evolving jobs, and their simulator.

Nouns: `job`, `speedup`. A policy (`policy`, `policies/`) is shown what a scheduler may know and says what to
do; the simulator (`simulator`) holds what really happens, and checks every action. Workloads come from
`workload/`, what came of them is told by `metrics`.
"""
