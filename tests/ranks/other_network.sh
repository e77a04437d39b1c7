#!/bin/sh
# Plays a remote shell: ADDRESS COMMAND..., on a host of this address, whose network is the namespace of that name.
# It shares no memory, and no name, with this one.
host=$1
shift
mkdir -p "$TMPDIR/shm.$host"
exec ip netns exec "$host" unshare --mount --uts --ipc sh -c \
    'hostname "$0" && mount --bind "$TMPDIR/shm.$0" /dev/shm && exec sh -c "$*"' "$host" "$@"
