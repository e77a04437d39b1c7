"""Bags of tasks with known answers: trees to be counted, sums over the vertices of a graph, samples.

They are examples of `mallob_py.kit.bags` and measures of it.

queens    solutions of the n queens problem
uts       nodes of unbalanced trees, whose `sha1` is where the time goes
compiled  kernels compiled by Numba, if there is one
numbers   what configurations hold
"""
