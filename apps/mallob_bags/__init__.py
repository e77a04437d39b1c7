"""Bags of tasks with known results: the nodes of trees, sums over the vertices of a graph, samples.

The bags are examples and benchmarks of `mallob_py.kit.bags`.

betweenness  the centrality of a graph's vertices; `graphs` generates the graph
pi           points in a circle
queens       solutions of the n queens problem
uts          nodes of unbalanced trees; `trees` defines the numbers of children, `sha1` the children's states
ranges       bags whose tasks are numbered
compiled     kernels, compiled by Numba if it is installed
declaration  the declarations of the applications, which a service reads without NumPy
numbers      checks of numbers and words in configurations
"""
