"""Regions of shared memory: which processes can open them, which parts are writable, and what is left of
them.
"""

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_user import as_nobody, needs_root

from mallob_py.kit.calls import sharing
from mallob_py.kit.calls.sharing import Region, Shared
from mallob_py.kit.calls.values import CannotSend, dump_to_share

OWN = {os.geteuid()}


@pytest.fixture
def shared() -> Iterator[tuple[Shared[Any], str, Region]]:
    one = sharing.share(dump_to_share(np.arange(5000)))
    yield one
    sharing.regions.pop(one[1], None)


@pytest.mark.parametrize(
    "array",
    [np.arange(9), np.ones((40, 50), order="F"), np.arange(20)[::2], np.ones((6, 4)).T[1:], np.array(3.0)],
    ids=["small", "by columns", "every other", "a part", "a number"],
)
def test_an_array_comes_out_as_it_went_in_and_can_be_changed_in_no_form(array: np.ndarray[Any, Any]) -> None:
    handle, mark, _ = sharing.share(dump_to_share({"inside": [array, "text"]}))
    found = handle.value["inside"][0]
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.base is not None
    with pytest.raises(ValueError, match="read-only"):
        found[...] = 0
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        found.flags.writeable = True
    assert handle.value is handle.value
    del sharing.regions[mark]


def test_a_mapped_file_is_shared_by_its_content(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "array", mode="w+", shape=100)
    mapped[:] = range(100)
    handle, mark, _ = sharing.share(dump_to_share(mapped))
    mapped[:] = 0
    assert handle.value.tolist() == list(range(100))
    assert type(handle.value) is np.ndarray
    del sharing.regions[mark]


def test_a_handle_is_small_and_is_the_same_in_the_process_that_shares(
    shared: tuple[Shared[Any], str, Region],
) -> None:
    handle, _, _ = shared
    data = pickle.dumps(handle)
    assert len(data) < 200
    assert pickle.loads(data) is handle
    assert repr(handle) == f"<Shared {handle.size_bytes} bytes>"


def test_what_is_shared_within_a_call_travels_with_its_handle() -> None:
    handle: Shared[Any] = sharing.share_within_call(dump_to_share(np.arange(5000)))
    again: Shared[Any] = pickle.loads(pickle.dumps(handle))
    assert again.value.sum() == handle.value.sum() == 5000 * 4999 // 2
    with pytest.raises(ValueError, match="read-only"):
        again.value[0] = 1


def test_nothing_stays_of_an_object_that_nobody_has() -> None:
    handle, mark, region = sharing.share(dump_to_share(np.arange(5000)))
    kept = handle.value
    number = os.stat(region.fd).st_ino
    del sharing.regions[mark], region
    with pytest.raises(LookupError, match="executor is shut down"):
        _ = handle.value
    assert kept[7] == 7
    assert _is_mapped(number)
    del kept
    gc.collect()
    assert not _is_mapped(number)


def _is_mapped(number: int) -> bool:
    mapped = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return any(
        words[4] == str(number) and "memfd:mallob-py" in words[5] for words in mapped if len(words) > 5
    )


def test_an_object_is_opened_by_its_mark_and_in_no_other_way(shared: tuple[Shared[Any], str, Region]) -> None:
    handle, mark, region = shared
    opened = sharing.opened(os.getpid(), region.fd, mark, OWN)
    assert np.array_equal(opened.value(), handle.value)
    for pid, number, wanted, users in (
        (os.getpid(), region.fd, "0" * 32, OWN),
        (os.getpid(), region.fd, mark, {os.geteuid() + 1}),
        (os.getpid(), 999_999, mark, OWN),
    ):
        with pytest.raises(OSError, match=r"descriptor|No such file"):
            sharing.opened(pid, number, wanted, users)


def test_what_could_still_change_is_not_opened(shared: tuple[Shared[Any], str, Region]) -> None:
    _, mark, region = shared
    for flags in (os.MFD_CLOEXEC, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING):
        fd = os.memfd_create("other", flags)
        os.write(fd, region.memory)
        with pytest.raises(PermissionError, match="is not the shared object"):
            sharing.opened(os.getpid(), fd, mark, OWN)
        os.close(fd)


def test_a_region_cannot_be_written_to_by_its_descriptor(shared: tuple[Shared[Any], str, Region]) -> None:
    fd = shared[2].fd
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0)):
        with pytest.raises(PermissionError):
            change()


@needs_root
def test_another_user_cannot_open_an_object(shared: tuple[Shared[Any], str, Region]) -> None:
    _, mark, region = shared
    pid, number = os.getpid(), region.fd
    with pytest.raises(PermissionError):
        as_nobody(lambda: sharing.opened(pid, number, mark, OWN).fd)


def test_what_cannot_be_pickled_cannot_be_shared() -> None:
    with pytest.raises(CannotSend, match="the object cannot be pickled: TypeError"):
        dump_to_share(threading.Lock())


def test_received_bytes_become_a_region(shared: tuple[Shared[Any], str, Region]) -> None:
    handle, mark, region = shared
    again = sharing.received(bytes(region.memory), mark)
    assert os.stat(again.fd).st_mode & 0o777 == 0o600
    assert np.array_equal(again.value(), handle.value)
