"""`mallob-py resize | drain`: give orders to the ranks of a running service (`service/store/orders.py`).

Both wait until the order is carried out. Ctrl-C takes the order back, unless it is already being carried out.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import DrainOptions, ResizeOptions
from mallob_py.cli.interrupts import INTERRUPTED
from mallob_py.runtime.notices import say
from mallob_py.service import ServiceError, client
from mallob_py.service.store import orders
from mallob_py.service.store.lock import is_locked

_LOOK_S = 0.01
#: time for which the folder's lock may be free while the rank that held it leaves
_GONE_S = 5.0


def run_resize(options: ResizeOptions) -> int:
    sign, number = options.change[0], int(options.change[1:])
    by = number if sign == "+" else -number
    hosts = tuple(orders.HostShare(name, most) for name, most in options.hosts)
    change = orders.Resize(to=number) if sign == "=" else orders.Resize(by=by)
    order = msgspec.structs.replace(change, hosts=hosts, remote_shell=options.remote_shell or ())
    return _carry_out("resize", options, order)


def run_drain(options: DrainOptions) -> int:
    return _carry_out("drain", options, orders.Drain(options.place, options.grace_s))


def _carry_out(command: str, options: ResizeOptions | DrainOptions, order: orders.Order) -> int:
    """Hand in an order and wait for its answer; return the exit code. Raises CommandError."""
    if not _is_running(options):
        raise CommandError(
            f"no service is running on {options.api_dir}"
            if options.orders is None
            else f"nobody takes orders in {options.orders}: start solve or run with --orders {options.orders}"
        )
    try:
        path = orders.give(Path(options.folder), order)
        try:
            answer = _awaited(path, options)
        except KeyboardInterrupt:
            orders.take_back(path)
            say(f"mallob-py {command}: the order is withdrawn, unless its execution had begun")
            return INTERRUPTED
    except ServiceError as error:
        raise CommandError(str(error)) from None
    if answer.refusal:
        raise CommandError(answer.refusal)
    if answer.before == answer.after:
        print(f"{_ranks(answer.after)}, as before")
    else:
        print(f"{_ranks(answer.after)}, before {answer.before}; it took {answer.took_s:.2f} s")
    return 0


def _is_running(options: ResizeOptions | DrainOptions) -> bool:
    if options.orders is None:
        return client.service_is_running(Path(options.api_dir))
    return is_locked(Path(options.orders) / orders.FOLDER)


def _awaited(order: Path, options: ResizeOptions | DrainOptions) -> orders.Answer:
    """Wait for the answer to an order. Raises ServiceError if none will come."""
    seen_s = time.monotonic()
    while (answer := orders.answer_to(order)) is None:
        now_s = time.monotonic()
        if _is_running(options) and order.exists():
            seen_s = now_s
        elif now_s > seen_s + _GONE_S:
            orders.take_back(order)
            who = "the service" if options.orders is None else "the command that took orders"
            raise ServiceError(f"{who} ended or restarted before the order was carried out")
        time.sleep(_LOOK_S)
    return answer


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"
