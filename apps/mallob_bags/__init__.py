"""Bags of tasks with known answers: trees to be counted, sums over the vertices of a graph, samples.

They are examples of `mallob_py.kit.bags` and measures of it.

betweenness  how central the vertices of a graph are; `graphs` makes one
pi           points in a circle
queens       solutions of the n queens problem
uts          nodes of unbalanced trees: `trees` says how many children, `sha1` which
ranges       bags of tasks known by number
compiled     kernels compiled by Numba, if there is one
declaration  what a service knows of them without importing any
numbers      what configurations hold
"""
