"""Whose fault it is that a worker gets no process."""

from __future__ import annotations

from enum import Enum


class Fault(Enum):
    #: this host gives none to any job: it cannot fork, or has no room
    HOST = "host"
    #: the process died before it ran: the host is ill, or the job is
    UNCLEAR = "unclear"
    #: what the process needs is gone, most often since its job has just ended
    NOBODY = "nobody"
