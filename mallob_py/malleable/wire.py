"""The lines of text between malleable programs and their scheduler: an order per connection.

    scheduler to program   shrink <n>                    answered by n lines: hosts without process now
                           grow <n> <host1> ... <hostn>  not answered
    program to scheduler   APGAS-Ready:<address>         orders are taken from now on
                           APGAS-Unready:<address>       orders are taken no more (a line of ours)
                           Evolving;Release;<host>:<address>
                           Evolving;Request;<n>:<address>

Source: ElasticJobScheduler and the malleable APGAS runtime. There, an address is an IP address, as each job
has nodes for itself, and orders go to the port of the scheduler. Where jobs share a host, it is the path of
the socket at which the job takes orders.
"""

from __future__ import annotations

import msgspec

#: a line without its end; hosts of a very large order
LINE_MAX_BYTES = 1 << 20


class WireError(ValueError):
    """A line that the protocol does not know. One line says why."""


class Shrink(msgspec.Struct, frozen=True):
    """Release so many hosts."""

    count: int


class Grow(msgspec.Struct, frozen=True):
    """These hosts are yours as well; one occurs as often as it has room for processes."""

    hosts: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True):
    """The program that takes orders at this address can be resized."""

    address: str


class Unready(msgspec.Struct, frozen=True):
    """The program takes no more orders at this address, and never will again."""

    address: str


class Release(msgspec.Struct, frozen=True):
    """An evolving program has no process on this host any more."""

    host: str
    address: str


class Wanted(msgspec.Struct, frozen=True):
    """An evolving program wants so many processes more; it takes the order to grow at this address."""

    count: int
    address: str


Order = Shrink | Grow
Notice = Ready | Unready | Release | Wanted


def order_line(order: Order) -> str:
    match order:
        case Shrink(count):
            return f"shrink {count}"
        case Grow(hosts):
            return " ".join(("grow", str(len(hosts)), *hosts))


def parse_order(line: str) -> Order:
    """Raises WireError."""
    word, *rest = line.split()[:2] or [""]
    count = _count(rest[0]) if rest else 0
    if word not in ("shrink", "grow") or not count:
        raise WireError(f"{line[:60]!r} is no order such as `shrink 2` or `grow 1 HOST`")
    hosts = tuple(line.split()[2:])
    if word == "shrink" and not hosts:
        return Shrink(count)
    if word == "grow" and len(hosts) == count:
        return Grow(hosts)
    raise WireError(f"{line[:60]!r} has {len(hosts)} hosts behind the number {count}")


def notice_line(notice: Notice) -> str:
    match notice:
        case Ready(address):
            return f"APGAS-Ready:{address}"
        case Unready(address):
            return f"APGAS-Unready:{address}"
        case Release(host, address):
            return f"Evolving;Release;{host}:{address}"
        case Wanted(count, address):
            return f"Evolving;Request;{count}:{address}"


def parse_notice(line: str) -> Notice:
    """Raises WireError."""
    said, colon, address = line.partition(":")
    if colon and address:
        if said == "APGAS-Ready":
            return Ready(address)
        if said == "APGAS-Unready":
            return Unready(address)
        kind, _, host = said.removeprefix("Evolving;").partition(";")
        if said.startswith("Evolving;") and kind == "Release" and host:
            return Release(host, address)
        if said.startswith("Evolving;") and kind == "Request" and (count := _count(host)):
            return Wanted(count, address)
    raise WireError(f"{line[:60]!r} is no notice such as `APGAS-Ready:ADDRESS`")


def _count(text: str) -> int:
    """0: it is no number of processes."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
