"""Policies for whole jobs over real processes, on the slots of nodes; and over the jobs inside a service.

`scheduler` is the pure core: it shows a policy what a simulator would, and turns its actions into effects.
`server` carries these out: `keeper` is a process that looks after one job, `folder` is what lies on disk.
`machines` and `slurm` know which nodes there are and how they are reached, where `remote` has a `guard` look
after the job. `service_policy` does by the same core what a service is to do with its jobs.
"""
