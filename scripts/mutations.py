"""The rules of the protocol, each with a small change that breaks it; `mutate.py` applies them.

A mutation names the rule in words, the file, and the text that is replaced, which must be
there exactly once. The list is kept by hand: one entry for each rule that somebody could
take for superfluous.
"""

from __future__ import annotations

import msgspec


class Mutation(msgspec.Struct, frozen=True):
    """A rule, and how to break it."""

    rule: str
    file: str
    old: str
    new: str


_PE = "mallob_py/protocol/pe.py"
_BALANCING = "mallob_py/protocol/balancing.py"
_MATCHING = "mallob_py/protocol/matching.py"
_TREE = "mallob_py/protocol/job_tree.py"
_WORKERS = "mallob_py/protocol/local_workers.py"
_CLIENT = "mallob_py/protocol/client.py"
_REUSE = "mallob_py/protocol/reuse.py"
_ROUTING = "mallob_py/protocol/routing_tree.py"
_WALK = "mallob_py/protocol/random_walk.py"

MUTATIONS = (
    # --- epochs ---------------------------------------------------------------------------
    Mutation(
        "a query from a coming epoch waits for that epoch",
        _PE,
        "        if not self._wait_for_epoch_of(message.request, source, message):\n"
        "            self.workers.receive_query(",
        "        if True:\n            self.workers.receive_query(",
    ),
    Mutation(
        "an adoption from a coming epoch waits for that epoch",
        _PE,
        "        if not self._wait_for_epoch_of(message.request, source, message):\n"
        "            self.workers.receive_adopt(",
        "        if True:\n            self.workers.receive_adopt(",
    ),
    Mutation(
        "a failed request of a coming epoch waits for that epoch",
        _PE,
        "        if message.epoch > self.balancer.epoch:\n"
        "            self._park(message.epoch, source, message)\n",
        "        if False:\n            pass\n",
    ),
    Mutation(
        "parked messages are handled once their epoch has come",
        _PE,
        "while self._parked and self._parked[0][0] <= self.balancer.epoch:",
        "while self._parked and self._parked[0][0] < self.balancer.epoch:",
    ),
    Mutation(
        "carried requests are looked through in each epoch",
        _PE,
        "        self.matcher.drop_outdated()\n",
        "",
    ),
    # --- balancing --------------------------------------------------------------------------
    Mutation(
        "the newer version of a job's event supersedes the older one on the way up",
        _BALANCING,
        "if known is None or known.version < event.version:\n                self._events",
        "if known is None:\n                self._events",
    ),
    Mutation(
        "the newer version of a job's event supersedes the one in the image",
        _BALANCING,
        "elif known is None or known.version < event.version:",
        "elif known is None:",
    ),
    Mutation(
        "events that wait for the least delay are sent when it is over",
        _BALANCING,
        "return self._may_send_from if self._events else math.inf",
        "return math.inf",
    ),
    Mutation(
        "an ended job leaves the image",
        _BALANCING,
        "                jobs.pop(event.job, None)\n",
        "                pass\n",
    ),
    Mutation(
        "with more jobs than PEs, standing decides who gets one",
        _BALANCING,
        "[event.standing for event in events] if len(events) > size else None",
        "[-event.standing for event in events] if len(events) > size else None",
    ),
    Mutation(
        "standing falls with the time of arrival",
        _BALANCING,
        "return math.log2(priority) - arrival_s / ageing_s",
        "return math.log2(priority)",
    ),
    # --- who leaves, and who knows (job_tree.py) ----------------------------------------------
    Mutation(
        "a parent keeps a child that came later than the epoch without room for it",
        _TREE,
        "                if seat.offer_epoch >= epoch:\n",
        "                if False:\n",
    ),
    Mutation(
        "a child that came later than the epoch without room for it is looked at again in the next one",
        _TREE,
        "                    is_settled = False\n                else:\n",
        "                    pass\n                else:\n",
    ),
    Mutation(
        "a seat that waits for somebody is looked at again in the next epoch",
        _TREE,
        "                is_settled = False\n                if seat.state is SeatState.EMPTY:\n",
        "                if seat.state is SeatState.EMPTY:\n",
    ),
    Mutation(
        "a seat that has been taken is looked at again in the next epoch",
        _TREE,
        "        self.settled_volume = -1\n        seat.state = SeatState.TAKEN\n",
        "        seat.state = SeatState.TAKEN\n",
    ),
    Mutation(
        "a leaving parent sends away the children who do not know of it",
        _WORKERS,
        "worker.seats.dismiss(since_epoch=epoch)",
        "worker.seats.close()",
    ),
    Mutation(
        "a rejected parent sends all its children away",
        _WORKERS,
        "worker.seats.dismiss(since_epoch=0)",
        "worker.seats.close()",
    ),
    Mutation(
        "a child tells a parent that accepted it later than the epoch in which it leaves",
        _WORKERS,
        "if worker.accepted_epoch is not None and worker.accepted_epoch >= epoch:",
        "if False:",
    ),
    Mutation(
        "whoever is accepted after it has left says so",
        _WORKERS,
        "            self._out.send(source, ChildLeft(message.job, message.index, message.context))\n",
        "",
    ),
    Mutation(
        "a worker leaves once its index is beyond the volume",
        _WORKERS,
        "if volume is not None and worker.index >= volume:",
        "if volume is not None and worker.index > volume:",
    ),
    Mutation(
        "an offer from an epoch that the parent has not seen is accepted",
        _TREE,
        "deserved = offer.epoch > epoch or offer.index < volume",
        "deserved = offer.index < volume",
    ),
    Mutation(
        "an offer beyond the volume is rejected",
        _TREE,
        "deserved = offer.epoch > epoch or offer.index < volume",
        "deserved = True",
    ),
    Mutation(
        "the first of two adopters gets the seat",
        _TREE,
        "if seat.state is SeatState.TAKEN or not deserved:",
        "if not deserved:",
    ),
    Mutation(
        "news of a child that has left are checked against its rank and context",
        _TREE,
        "if seat.state is not SeatState.TAKEN or (seat.rank, seat.context) != (source, context):",
        "if seat.state is not SeatState.TAKEN:",
    ),
    Mutation(
        "a message for a former stay does not concern the present one",
        _WORKERS,
        "return worker if worker is not None and worker.context == context else None",
        "return worker",
    ),
    Mutation(
        "the request for a taken seat is withdrawn",
        _TREE,
        "        self._matcher.withdraw(self._job, seat.index)\n        self.settled_volume = -1\n",
        "        self.settled_volume = -1\n",
    ),
    Mutation(
        "an unwanted seat withdraws its request",
        _TREE,
        "                self._matcher.withdraw(self._job, seat.index)\n                seat.clear()\n",
        "                seat.clear()\n",
    ),
    Mutation(
        "a parent that leaves withdraws its requests",
        _TREE,
        "                self._matcher.withdraw(self._job, seat.index)\n            seat.clear()\n",
        "                pass\n            seat.clear()\n",
    ),
    Mutation(
        "an unmatched request is renewed in each epoch",
        _TREE,
        "elif seat.state is SeatState.ASKED and self._matcher.is_asking(self._job, seat.index):\n"
        "                    self._ask(",
        "elif False:\n                    self._ask(",
    ),
    Mutation(
        "a failed request is asked anew",
        _TREE,
        "            seat.clear()\n            self.fit(volume, epoch, now)\n",
        "            seat.clear()\n",
    ),
    Mutation(
        "a denied query is followed by another query or a request",
        _TREE,
        "        if seat.state is SeatState.QUERIED and seat.rank == source:\n",
        "        if False:\n",
    ),
    Mutation(
        "a description that comes late is passed on to the children",
        _TREE,
        "            self._out.send(seat.rank, Described(self._job, seat.context, blob))",
        "            pass",
    ),
    # --- adoption -----------------------------------------------------------------------------
    Mutation(
        "an adoption that is not deserved any more is declined",
        _WORKERS,
        "if self.active is None and self.is_obsolete(request):",
        "if False:",
    ),
    Mutation(
        "whoever declines an adoption tells the parent",
        _WORKERS,
        "            self.fail(request)\n            self._reject_early()\n",
        "            self._reject_early()\n",
    ),
    Mutation(
        "answers to a parent to be that declines are answered no",
        _WORKERS,
        "            self.fail(request)\n            self._reject_early()\n",
        "            self.fail(request)\n",
    ),
    Mutation(
        "a token that comes back sends those away who waited for an adoption",
        _WORKERS,
        "        self._matcher.token_used()\n        self._reject_early()\n",
        "        self._matcher.token_used()\n",
    ),
    Mutation(
        "a token that comes back takes part again",
        _WORKERS,
        "        self._matcher.token_used()\n        self._reject_early()\n        self.update_token()\n",
        "        self._reject_early()\n",
    ),
    Mutation(
        "an offer that is quicker than our own adoption waits for it",
        _WORKERS,
        "        elif self._may_yet_adopt():\n            self._early.append((source, offer))\n",
        "",
    ),
    Mutation(
        "a failure that is quicker than our own adoption waits for it",
        _WORKERS,
        "        if self._may_yet_adopt():\n            self._early.append((source, message))\n"
        "        elif (worker :=",
        "        if (worker :=",
    ),
    Mutation(
        "a query is denied while the PE's token is granted",
        _WORKERS,
        "            and not self._matcher.token_granted\n            and (self._volume_of",
        "            and (self._volume_of",
    ),
    Mutation(
        "a query beyond the volume is denied",
        _WORKERS,
        "            and (self._volume_of(request.job) or 0) > request.index\n",
        "",
    ),
    # --- matching -----------------------------------------------------------------------------
    Mutation(
        "a PE whose token is granted does not offer it again",
        _MATCHING,
        "        offered = idle and not self.token_granted\n",
        "        offered = idle\n",
    ),
    Mutation(
        "a request number that nobody claims is declared void",
        _MATCHING,
        "            self._out.send(number % self._out.size, VoidRequest(number))\n",
        "            pass\n",
    ),
    Mutation(
        "a token number that nobody claims is declared void",
        _MATCHING,
        "            self._out.send(number % self._out.size, VoidToken(number))\n",
        "            pass\n",
    ),
    Mutation(
        "a token without a request is returned",
        _MATCHING,
        "            self._out.send(token_rank, TokenReturned())\n",
        "            pass\n",
    ),
    Mutation(
        "the numbers below a request without a token are declared void",
        _MATCHING,
        "                self._void_from(request, position)\n",
        "                pass\n",
    ),
    Mutation(
        "a request without a token takes part again or goes back to its parent",
        _MATCHING,
        "            self.carry(request)\n            for position",
        "            for position",
    ),
    Mutation(
        "a carried request of a past epoch goes back to its parent",
        _WORKERS,
        "return request.epoch < self._epoch()",
        "return False",
    ),
    # --- the routing tree ---------------------------------------------------------------------
    Mutation(
        "a request that goes down takes one from the count of that subtree",
        _ROUTING,
        "            self._left -= 1\n",
        "            pass\n",
    ),
    Mutation(
        "whoever gets a request from above has been counted as one idle PE less",
        _ROUTING,
        "                self._advertised -= 1\n",
        "",
    ),
    Mutation(
        "a request that climbs takes the news of idle PEs with it",
        _ROUTING,
        "Climb(number, self._news(), request)",
        "Climb(number, 0, request)",
    ),
    Mutation(
        "a request goes down to an idle PE before it climbs",
        _ROUTING,
        "        elif self._right > 0:\n",
        "        elif self._right > 0 and self._place.parent is None:\n",
    ),
    Mutation(
        "a PE that is promised to a request is not idle for another one",
        _ROUTING,
        "self._is_idle = idle and not self.token_granted",
        "self._is_idle = idle",
    ),
    Mutation(
        "a withdrawn request leaves the queue at the root",
        _ROUTING,
        "            self._out.send(self._root, Withdrawn(number))\n",
        "            pass\n",
    ),
    Mutation(
        "a request withdrawn on its way leaves the queue as soon as it waits",
        _ROUTING,
        "                    self._out.send(source, Withdrawn(message.number))\n",
        "                    pass\n",
    ),
    Mutation(
        "asking anew withdraws the former request",
        _ROUTING,
        "        self.withdraw(request.job, request.index)\n        self._asks",
        "        self._asks",
    ),
    Mutation(
        "a waiting request goes back to its parent in the next epoch",
        _ROUTING,
        "for key, request in self._waiting.items() if self._is_outdated(request)]",
        "for key, request in self._waiting.items() if False]",
    ),
    Mutation(
        "an outdated request does not begin to wait",
        _ROUTING,
        "        elif self._is_outdated(request):\n",
        "        elif False:\n",
    ),
    Mutation(
        "a correction that waits for the least delay is sent when it is over",
        _ROUTING,
        "        return self._may_send_from\n",
        "        return math.inf\n",
    ),
    # --- random walks ---------------------------------------------------------------------------
    Mutation(
        "a walk does not end at a PE whose token is granted",
        _WALK,
        "        if self._is_idle and not self.token_granted:\n",
        "        if self._is_idle:\n",
    ),
    Mutation(
        "a PE at which a walk has ended is not idle for the matcher behind",
        _WALK,
        "            self._behind.offer_token(False)\n",
        "",
    ),
    Mutation(
        "a walk of an outdated request ends",
        _WALK,
        "        elif self._is_outdated(request):\n            self._on_outdated(request)\n        elif walk",
        "        elif walk",
    ),
    Mutation(
        "an outdated request that comes home goes back to its parent",
        _WALK,
        "        if self._is_outdated(request):\n"
        "            self._on_outdated(request)\n"
        "        elif self._is",
        "        if self._is",
    ),
    Mutation(
        "a withdrawn request that comes home is dropped",
        _WALK,
        "        self._away.pop((job, subtree), None)\n",
        "",
    ),
    Mutation(
        "a request that was asked anew while it was away is dropped when it comes home",
        _WALK,
        "if known is None or (known.epoch, known.asked_s) != (request.epoch, request.asked_s):",
        "if known is None:",
    ),
    Mutation(
        "a walk without limit is followed by another one",
        _WALK,
        "        elif self._is_endless:\n",
        "        elif False:\n",
    ),
    Mutation(
        "a request whose walk has ended is handed to the matcher behind",
        _WALK,
        "            self._behind.ask(msgspec.structs.replace(request, hops=request.hops + 1))\n",
        "            self._on_outdated(request)\n",
    ),
    # --- reuse --------------------------------------------------------------------------------
    Mutation(
        "a PE that waits for a suspended worker's job waits for a bounded time",
        _WORKERS,
        "return min(self._holds.values(), default=math.inf)",
        "return math.inf",
    ),
    Mutation(
        "a PE whose suspended worker is not wanted is released",
        _TREE,
        "                self._out.send(past.rank, Release(self._job))\n",
        "                pass\n",
    ),
    Mutation(
        "a denied query releases the PE for others",
        _WORKERS,
        "            self._holds.pop(request.job, None)\n            self._out.send(request.parent, Denied",
        "            self._out.send(request.parent, Denied",
    ),
    Mutation(
        "past workers are remembered under their own index",
        _WORKERS,
        "past += (PastWorker(worker.index, self._out.rank, epoch),)",
        "past += (PastWorker(worker.index + 1, self._out.rank, epoch),)",
    ),
    Mutation(
        "a leaving worker's memory goes to the nearest ancestor that stays",
        _WORKERS,
        "                self._report_past(worker, volume, past)\n",
        "                pass\n",
    ),
    Mutation(
        "a rank is remembered once",
        _REUSE,
        "            self.forget(worker.rank)\n            known = self._by_index.setdefault",
        "            known = self._by_index.setdefault",
    ),
    Mutation(
        "the cache of suspended workers is bounded",
        _WORKERS,
        "while len(self.suspended) > self._config.job_cache:",
        "while False:",
    ),
    # --- ends -----------------------------------------------------------------------------------
    Mutation(
        "the end of a job ends its suspended workers",
        _WORKERS,
        "        if (worker := self.suspended.pop(job, None)) is not None:\n",
        "        if (worker := self.suspended.pop(job, None)) is not None and False:\n",
    ),
    Mutation(
        "a worker put aside after the end of its job is terminated",
        _WORKERS,
        "if self._volume_of(worker.job) is None:\n            # Its",
        "if False:\n            # Its",
    ),
    Mutation(
        "an offer for a root whose job is over is rejected",
        _CLIENT,
        "            self._out.send(source, offer.rejection())\n            return\n        if not",
        "            return\n        if not",
    ),
    Mutation(
        "the first result ends the job, later ones find it gone",
        _CLIENT,
        '        """The first result ends the job; later ones find it gone."""\n        self._now = now\n'
        "        if (record := self.jobs.get(message.job)) is not None:\n",
        '        """The first result ends the job; later ones find it gone."""\n        self._now = now\n'
        "        if (record := self.jobs[message.job]) is not None:\n",
    ),
    Mutation(
        "a job demands at least one worker",
        _CLIENT,
        "demand = max(1, min(demand, self._demand_max(record)))",
        "demand = max(0, min(demand, self._demand_max(record)))",
    ),
    Mutation(
        "a job demands no more than it may",
        _CLIENT,
        "demand = max(1, min(demand, self._demand_max(record)))",
        "demand = max(1, min(demand, self._out.size))",
    ),
    Mutation(
        "a job submitted while no PE is free is published at once",
        _CLIENT,
        "        else:\n            self._publish(record)\n",
        "",
    ),
    Mutation(
        "a root asked for ahead of its first epoch counts as deserved",
        _CLIENT,
        "return 1 if volume is None else volume",
        "return volume or 0",
    ),
    Mutation(
        "a root adopted by its client on the spot asks for its children itself",
        _CLIENT,
        "self._workers.adopt(msgspec.structs.replace(request, count=1), self._now())",
        "self._workers.adopt(request, self._now())",
    ),
    Mutation(
        "a result frees its PE and ends the worker at once",
        _WORKERS,
        "        self._end(worker.job)\n        self.update_token()\n",
        "        self.update_token()\n",
    ),
    Mutation(
        "messages between workers that cannot be delivered come back",
        _WORKERS,
        "            self._out.send(source, message.back())\n",
        "            pass\n",
    ),
    Mutation(
        "a returned message is not returned once more",
        _WORKERS,
        "        if not message.returned:\n",
        "        if True:\n",
    ),
)


def apply(mutation: Mutation, text: str) -> str:
    """The changed source; the old text must be there once and only once."""
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.file}: the text of {mutation.rule!r} is there {found} times")
    changed = text.replace(mutation.old, mutation.new)
    compile(changed, mutation.file, "exec")
    return changed
