"""Policies for whole jobs over real processes, on the slots of nodes.

`scheduler` is the pure core: it shows a policy the simulator's view, and turns actions into effects. `server`
carries the effects out. A `keeper` process looks after one job; on another node, the keeper starts a `guard`
by `remote`. `folder` is the state on disk. `machines` knows the nodes and how to reach them.
"""
