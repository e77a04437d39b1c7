#!/bin/sh
# Plays a remote shell: HOST COMMAND..., on a host with a network of its own, HOST being the name of a network
# namespace, which shares no memory, and no name, with this one.
host=$1
shift
mkdir -p "$TMPDIR/shm.$host"
exec ip netns exec "$host" unshare --mount --uts --ipc sh -c \
    'hostname "$0" && mount --bind "$TMPDIR/shm.$0" /dev/shm && exec "$@"' "$host" "$@"
