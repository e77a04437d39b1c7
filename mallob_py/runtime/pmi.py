"""The process manager's side of PMI-1, by which the ranks of an MPICH find each other.

What mpiexec answers on the descriptor that it leaves each rank (`PMI_FD`): lines of `key=value` words,
every question answered by one line, barriers by one line to all. The protocol is that of MPICH's
`src/pmi/src/pmi_v1.c`, which hydra, Slurm and others have been serving unchanged for twenty years. Only what
a world of fixed size on one host asks is served; every other wish (spawning ranks) is declined.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

#: limits that the ranks are told, as hydra does
_KEY_LENGTH_MAX = 64
_VALUE_LENGTH_MAX = 1024


def pmi_environment(rank: int, ranks: int, descriptor: int) -> dict[str, str]:
    """What a rank must find in its environment when it initialises MPI."""
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks), "PMI_FD": str(descriptor)}


class PmiServer:
    """Serves all ranks of one world.

    No other world of this host may ever have had its `name`: MPICH names shared memory after it, and takes
    what a killed world has left behind for its own.
    """

    def __init__(self, ranks: int, name: str) -> None:
        self._ranks = ranks
        self._name = name
        # One node holds all ranks.
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{ranks}))"}
        self._partial = [b""] * ranks
        self._at_barrier: set[int] = set()
        #: ranks that have left MPI in order
        self.finalized: set[int] = set()
        #: whether a rank wants all to end
        self.is_aborted = False

    def receive(self, rank: int, data: bytes) -> list[tuple[int, bytes]]:
        """What to send to which ranks after this rank has sent `data`."""
        *lines, self._partial[rank] = (self._partial[rank] + data).split(b"\n")
        return [answer for line in lines for answer in self._answers(rank, line.decode("ascii", "replace"))]

    def _answers(self, rank: int, line: str) -> list[tuple[int, bytes]]:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._at_barrier.add(rank)
            if len(self._at_barrier) < self._ranks:
                return []
            self._at_barrier.clear()
            return [(each, b"cmd=barrier_out\n") for each in range(self._ranks)]
        if command == "abort":
            self.is_aborted = True
            return []
        return [(rank, f"cmd={self._answer(rank, command, words)}\n".encode("ascii"))]

    def _answer(self, rank: int, command: str, words: dict[str, str]) -> str:
        match command:
            case "init":
                return "response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"maxes kvsname_max=256 keylen_max={_KEY_LENGTH_MAX} vallen_max={_VALUE_LENGTH_MAX}"
            case "get_appnum":
                return "appnum appnum=0"
            case "get_universe_size":
                return f"universe_size size={self._ranks}"
            case "get_my_kvsname":
                return f"my_kvsname kvsname={self._name}"
            case "put":
                self._values[words.get("key", "")] = words.get("value", "")
                return "put_result rc=0 msg=success"
            case "get":
                if (value := self._values.get(words.get("key", ""))) is None:
                    return "get_result rc=-1 msg=key_not_found value=unknown"
                return f"get_result rc=0 msg=success value={value}"
            case "finalize":
                self.finalized.add(rank)
                return "finalize_ack"
            case _:
                return f"{command}_result rc=-1 msg=not_supported"
