"""A tree of UTS cut into 1000 fixed pieces, counted by somebody else's pool of two processes.

    python peers.py pool|dask|ray DEPTH
    mpiexec -n 3 python -m mpi4py.futures peers.py mpi4py.futures DEPTH

Prints seconds, from when the pool's processes have counted something to the total. Dask and Ray are no part
of this project: `pip install 'dask[distributed]' ray`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from mallob_bags.uts import UtsApplication

#: the depth of the tree, and open nodes of it
Piece: TypeAlias = tuple[int, bytes]
#: counts pieces
Map: TypeAlias = Callable[[Sequence[Piece]], Iterable[int]]

PROCESSES = 2
PIECES = 1000
#: nodes between two cuts
_STEP = 500


def count_piece(piece: Piece) -> int:
    """The nodes of a piece."""
    depth, data = piece
    bag = UtsApplication().bag_from_bytes(data, {}, {"depth": depth})
    while not bag.is_empty():
        bag.process(1 << 20)
    return int(bag.take_result()[0])


def cut(depth: int) -> tuple[int, list[Piece]]:
    """Return how many nodes were counted on the way, and the pieces."""
    bags, nodes = deque([UtsApplication().first_bag({}, {"depth": depth})]), 0
    while len(bags) < PIECES:
        bag = bags.popleft()
        bag.process(_STEP)
        nodes += bag.take_result()[0]
        given = bag.split()
        bags.extend([bag] if given is None else [bag, given])
    return nodes, [(depth, bag.to_bytes()) for bag in bags]


@contextmanager
def pool() -> Iterator[Map]:
    with multiprocessing.Pool(PROCESSES) as processes:
        yield lambda pieces: processes.imap_unordered(count_piece, pieces)


@contextmanager
def dask() -> Iterator[Map]:
    from distributed import Client

    with Client(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None) as client:
        yield lambda pieces: client.gather(client.map(count_piece, pieces, pure=False))


@contextmanager
def ray() -> Iterator[Map]:
    os.environ |= {"RAY_worker_niceness": "0"}  # else its workers give way to all others
    import ray as library

    library.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    remote = library.remote(count_piece)
    yield lambda pieces: library.get([remote.remote(piece) for piece in pieces])
    library.shutdown()


@contextmanager
def futures() -> Iterator[Map]:
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as executor:
        yield lambda pieces: executor.map(count_piece, pieces, unordered=True)


PEERS = {"pool": pool, "dask": dask, "ray": ray, "mpi4py.futures": futures}


def main() -> None:
    nodes, pieces = cut(int(sys.argv[2]))
    with PEERS[sys.argv[1]]() as mapped:
        list(mapped([pieces[0]] * 4 * PROCESSES))
        begin_s = time.monotonic()
        total = nodes + sum(mapped(pieces))
        print(f"{time.monotonic() - begin_s:.3f} s, {total} nodes")


if __name__ == "__main__":
    main()
