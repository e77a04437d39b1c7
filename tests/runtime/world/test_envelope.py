"""A message sealed for a PE is unsealed unchanged, with its sender and its receiver."""

import pytest

from mallob_py.protocol.messages import Supply, TreeMessage, decode, encode
from mallob_py.runtime.world.envelope import WireError, open_envelope, seal

LARGE = TreeMessage(1, 2, 3, 4, 5, False, bytes(range(256)) * 4096)


@pytest.mark.parametrize("message", [Supply(1, 2), LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_an_envelope_keeps_both_pes_and_the_message(
    message: Supply | TreeMessage, kind: type[bytes] | type[bytearray]
) -> None:
    data = kind(seal(1 << 40, 70_000, 3, encode(message)))
    assert open_envelope(data, decode) == (1 << 40, 70_000, 3, message)


@pytest.mark.parametrize(
    "data",
    [b"", b"short", seal(0, 1, 2, b""), seal(0, 1, 2, b"\xc1"), seal(0, 1, 2, b"\x92\x04\xa1x"), bytes(100)],
)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_that_no_rank_can_have_sent_are_an_error_of_the_sender(
    data: bytes, kind: type[bytes] | type[bytearray]
) -> None:
    with pytest.raises(WireError):
        open_envelope(kind(data), decode)
