"""The machine of a trace, from its header and the sizes of its jobs.

Sizes of jobs in a trace count processors. `MaxProcs` is the machine's number of processors, `MaxNodes` its
number of nodes. If both are given and all sizes are multiples of MaxProcs/MaxNodes, jobs had whole nodes with
this number of processors. If not all sizes are multiples, jobs had parts of nodes, so each processor is a
node here. If only `MaxNodes` is given, it is assumed to count in the unit of jobs' sizes; an excessive load,
or a job larger than `MaxNodes`, shows that this is wrong.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

#: the load above which a trace cannot come from a real machine
LOAD_MAX = 1.2
#: the load on a suggested machine
_USUAL_LOAD = 0.8


class Header(msgspec.Struct, frozen=True):
    """The fields `MaxProcs` and `MaxNodes` of a trace's header; 0: not given."""

    max_procs: int
    max_nodes: int


class Machine(msgspec.Struct, frozen=True):
    """The machine of a trace. `nodes`: 0 if unknown. `remark`: how `nodes` was determined, if not obvious."""

    nodes: int
    processors_per_node: int = 1
    remark: str = ""


class Demand(msgspec.Struct, frozen=True):
    """The demand of jobs: the largest size, the mean number of busy nodes, the greatest divisor of all sizes.

    `busy` is the mean from the first submission to the last end if no job waits. `is_burst`: the span of all
    submissions is shorter than a mean job, so the load says nothing about the machine.
    """

    largest: int = 0
    busy: float = 0.0
    divisor: int = 1
    is_burst: bool = True


def machine_of(header: Header, processors: NDArray[np.float64], nodes: int, per_node: int) -> Machine:
    """Return a trace's machine by `nodes` and `per_node` or, where they are 0, by the header.

    `per_node`: processors per node. `processors`: the sizes of all jobs.
    """
    procs, hosts = header.max_procs, header.max_nodes
    if per_node:
        return Machine(nodes or (max(1, procs // per_node) if procs else hosts), per_node)
    if not (procs and hosts and procs > hosts):
        return Machine(nodes or procs or hosts)
    ratio, rest = divmod(procs, hosts)
    sizes = processors[processors > 0]
    if rest or (sizes % ratio).any():
        parts = f"jobs had parts of its {hosts} nodes (MaxNodes)"
        remark = "" if nodes else f"{parts}: each of its {procs} processors (MaxProcs) is a node here"
        return Machine(nodes or procs, remark=remark)
    said = f"MaxProcs {procs}, MaxNodes {hosts}"
    return Machine(
        nodes or hosts, ratio, f"a node has {ratio} processors ({said}): taken as --cores-per-node {ratio}"
    )


def demand_of(
    submissions_s: NDArray[np.float64], sizes: NDArray[np.float64], runs_s: NDArray[np.float64]
) -> Demand:
    """Return the demand of jobs, whose sizes count nodes; jobs without size or run time are ignored."""
    asks = (sizes > 0) & (runs_s > 0)
    if not asks.any():
        return Demand()
    submissions_s, sizes, runs_s = submissions_s[asks], sizes[asks], runs_s[asks]
    span_s = float((submissions_s + runs_s).max() - submissions_s.min())
    return Demand(
        largest=int(sizes.max()),
        busy=float((sizes * runs_s).sum()) / span_s,
        divisor=int(np.gcd.reduce(sizes.astype(np.int64))),
        is_burst=bool(np.ptp(submissions_s) < runs_s.mean()),
    )


def unknown(demand: Demand) -> str:
    """Return the error text for an unknown machine; it suggests a sufficient number of nodes."""
    said = "the trace does not say how many nodes its machine had: give the number (--nodes)"
    if not demand.largest:
        return said
    enough = _enough(demand)
    said += (
        f"; its largest job has size {demand.largest}, and {demand.busy:.0f} would be busy on average:"
        f" --nodes {enough} is a load of {demand.busy / enough:.2f}"
    )
    if demand.divisor > 1:
        said += f"; all sizes are multiples of {demand.divisor}: see --cores-per-node, too"
    return said


def overload(header: Header, machine: Machine, demand: Demand, nodes: int) -> str:
    """Return a warning if the load is too high for a real machine, or if a job exceeds `MaxNodes`.

    The warning names the likely cause; the result is "" if there is no reason to warn. `nodes`: the number of
    nodes that the user gave instead of the header's (0: none given).
    """
    load = demand.busy / machine.nodes
    counts_hosts = not nodes and not header.max_procs and machine.processors_per_node == 1
    sign = f"the offered load is {load:.2f} times the machine's capacity ({machine.nodes} nodes)"
    if load <= LOAD_MAX or demand.is_burst:
        if not counts_hosts or demand.largest <= machine.nodes:
            return ""
        sign = f"the largest job has size {demand.largest}, more than the machine ({machine.nodes} nodes)"
    said = machine_of(header, np.zeros(0), 0, machine.processors_per_node).nodes
    if nodes and nodes < said:
        cause = f"--nodes {nodes} is a smaller machine than the trace's, which has {said}"
    elif nodes:
        cause = f"is --nodes {nodes} right? On {_enough(demand)} nodes, the load would be usual"
    elif counts_hosts:
        cause = (
            "its header has only MaxNodes, and sizes of jobs count processors: give --cores-per-node, or"
            f" --nodes (such as {_enough(demand)})"
        )
    else:
        cause = "its jobs come faster than they can run (a busy part of a trace), or its header is wrong"
    return f"{sign}: {cause}"


def _enough(demand: Demand) -> int:
    """Return a sufficient number of nodes: that of the largest job or, if the load were too high, more."""
    if demand.busy <= LOAD_MAX * demand.largest:
        return demand.largest
    return math.ceil(demand.busy / _USUAL_LOAD)
