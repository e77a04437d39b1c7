"""Policies for whole jobs over real processes, on the slots of nodes.

`scheduler` is the pure core: it shows a policy the simulator's view, and turns actions into effects. `server`
carries these out: a `keeper` process looks after one job, `folder` is the state on disk. `machines` and
`slurm` know the nodes and how to reach them; on these, `remote` has a `guard` look after the job.
"""
