"""The lines of text between malleable programs and their scheduler: one order or notice per connection.

    scheduler to program   shrink <n>                    answered by n lines: the hosts of ended processes
                           grow <n> <host1> ... <hostn>  not answered
    program to scheduler   APGAS-Ready:<address>         orders are accepted from now on
                           APGAS-Unready:<address>       no more orders are accepted (an extension)
                           Evolving;Release;<host>:<address>
                           Evolving;Request;<n>:<address>
                           Evolving;Wish;<n>:<address>   there is work for n processes (an extension)
                           Evolving;Progress;<x>:<address>  x units of work are done (an extension)

Source: ElasticJobScheduler and the malleable APGAS runtime. There, an address is an IP address, because each
job has its own nodes, and orders go to the same port as the scheduler's. If jobs share a host, an address is
the path of the socket at which the job accepts orders.
"""

from __future__ import annotations

import math

import msgspec

#: greatest length of a line, enough for the hosts of a very large order
LINE_MAX_BYTES = 1 << 20


class WireError(ValueError):
    """Error: the protocol does not define this line. One line states the reason."""


class Shrink(msgspec.Struct, frozen=True):
    """An order to release `count` hosts."""

    count: int


class Grow(msgspec.Struct, frozen=True):
    """An order to start a process for each entry of `hosts`; a host may have several entries."""

    hosts: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True):
    """A notice: a program accepts orders at this address from now on."""

    address: str


class Unready(msgspec.Struct, frozen=True):
    """A notice: the program at this address will never accept orders again."""

    address: str


class Release(msgspec.Struct, frozen=True):
    """A notice: an evolving program has ended its process on `host`."""

    host: str
    address: str


class Wanted(msgspec.Struct, frozen=True):
    """A notice: an evolving program requests `count` further processes; orders to grow go to this address."""

    count: int
    address: str


class Wish(msgspec.Struct, frozen=True):
    """A notice: a program that accepts orders has work for `count` processes in all, until its next wish."""

    count: int
    address: str


class Progress(msgspec.Struct, frozen=True):
    """A notice: a program has done this much work in all, in a unit of its own."""

    done: float
    address: str


Order = Shrink | Grow
Notice = Ready | Unready | Release | Wanted | Wish | Progress


def order_line(order: Order) -> str:
    match order:
        case Shrink(count):
            return f"shrink {count}"
        case Grow(hosts):
            return " ".join(("grow", str(len(hosts)), *hosts))


def parse_order(line: str) -> Order:
    """Parse a line into an order. Raises WireError."""
    word, *rest = line.split()[:2] or [""]
    count = _count(rest[0]) if rest else 0
    if word not in ("shrink", "grow") or not count:
        raise WireError(f"{line[:60]!r} is no order such as `shrink 2` or `grow 1 HOST`")
    hosts = tuple(line.split()[2:])
    if word == "shrink" and not hosts:
        return Shrink(count)
    if word == "grow" and len(hosts) == count:
        return Grow(hosts)
    raise WireError(f"{line[:60]!r} has {len(hosts)} hosts after the number {count}")


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
        case Wish(count, address):
            return f"Evolving;Wish;{count}:{address}"
        case Progress(done, address):
            return f"Evolving;Progress;{done!r}:{address}"


def parse_notice(line: str) -> Notice:
    """Parse a line into a notice. Raises WireError."""
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
        if said.startswith("Evolving;") and kind == "Wish" and (count := _count(host)):
            return Wish(count, address)
        if said.startswith("Evolving;") and kind == "Progress" and (done := _amount(host)) is not None:
            return Progress(done, address)
    raise WireError(f"{line[:60]!r} is no notice such as `APGAS-Ready:ADDRESS`")


def _count(text: str) -> int:
    """Parse a number of processes; return 0 if the text is no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _amount(text: str) -> float | None:
    """Parse an amount of work; return None if the text is no finite number from 0 on."""
    try:
        done = float(text)
    except ValueError:
        return None
    return done if 0.0 <= done < math.inf else None
