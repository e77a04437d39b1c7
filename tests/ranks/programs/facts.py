"""Each rank prints what its transport says about hosts and doorbells."""

from __future__ import annotations

from turns import end, join

transport = join()
hosts = [transport.host_of(rank) for rank in range(transport.size)]
bell = transport.doorbell
print(
    f"{transport.rank}: {hosts} {list(transport.local_ranks)} {bell.available} {bell.has_remote_peers}",
    flush=True,
)
end(transport)
