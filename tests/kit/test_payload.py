"""Arrays of a payload arrive as they are, however large."""

import numpy as np
import pytest

from mallob_py.kit.payload import decode_description, description_parts, encode_description


@pytest.mark.parametrize("count", [3, 5000])
@pytest.mark.parametrize("kind", ["i4", ">i4", "f2", "c16", "?", "U3", "M8[s]", "m8[D]"])
def test_an_array_of_any_kind_arrives_as_it_is(kind: str, count: int) -> None:
    sent = np.arange(count).astype(kind)
    arrived = decode_description(encode_description("A", {}, {"array": sent})).payload["array"]
    assert arrived.dtype == sent.dtype
    assert np.array_equal(arrived, sent)
    parts = description_parts("A", {}, {"array": sent})
    assert sum(map(len, parts)) == len(b"".join(parts))


def test_a_single_number_stays_one() -> None:
    arrived = decode_description(encode_description("A", {}, {"number": np.array(7)})).payload["number"]
    assert arrived.shape == ()
    assert int(arrived) == 7


def test_an_array_of_objects_is_refused_with_its_name() -> None:
    with pytest.raises(TypeError, match="array 'lists' of the payload holds Python objects"):
        encode_description("A", {}, {"lists": np.array([None, 1], dtype=object)})
