"""Policies for whole jobs over real processes, on the slots of nodes.

`scheduler` is the pure core: it shows a policy what a simulator would, and turns its actions into effects.
`server` carries these out: `keeper` is a process that looks after one job, `folder` is what lies on disk.
`machines` and `slurm` know which nodes there are and how they are reached, where `remote` has a `guard` look
after the job.
"""
