"""Policies for whole jobs over real processes, on the slots of one host.

`scheduler` is the pure core: it shows a policy what a simulator would, and turns its actions into effects.
`server` carries these out: `keeper` is a process that looks after one job, `folder` is what lies on disk.
"""
