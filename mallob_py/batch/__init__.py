"""Whole jobs on whole nodes: schedulers of rigid, moldable, malleable and evolving jobs, and their simulator.

Nouns: `job`, `speedup`. A policy (`policy`, `policies/`) sees what a scheduler may know, and gives orders;
the simulator (`simulator`) holds the truth, and checks every action. Workloads come from `workload/`, results
go to `metrics`.
"""
