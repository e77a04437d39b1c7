"""A message to oneself must not go through the transport."""

from __future__ import annotations

from turns import end, join

transport = join()
try:
    transport.send(transport.rank, b"me")
except AssertionError:
    print("refused", flush=True)
end(transport)
