#!/usr/bin/env bash
# Builds the image of the Dockerfile without docker or a registry, and uses it as its users would.
#
# Needs root, Debian's buildah and debootstrap, and a way to the package indexes: some minutes. Differs from
# `docker build` in this: the base image is debootstrap's minbase of the release that the Dockerfile names, and
# what runs shares processes, network and /dev/shm with the host. PIP_CERT, if set, is brought along.
set -euo pipefail

for program in buildah debootstrap curl; do
    command -v "$program" >/dev/null || { echo "try_image: SKIPPED, nothing was tried: there is no $program" >&2; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "try_image: SKIPPED, nothing was tried: only root can" >&2; exit 0; }

sources=$(cd "$(dirname "$0")/.." && pwd)
box=$(mktemp -d "${TMPDIR:-/tmp}/mallob-py-image.XXXXXX")
tool=(buildah --root "$box/storage" --runroot "$box/run" --storage-driver vfs)
in_container=("${tool[@]}" run --isolation chroot --network host)
background=()
finish() {
    for group in "${background[@]}"; do kill -- "-$group" 2>/dev/null || true; done
    "${tool[@]}" rm --all >/dev/null 2>&1 || true
    rm -rf "$box"
}
trap finish EXIT
trap 'echo "try_image: line $LINENO failed" >&2' ERR

base=$(sed -n 's/^FROM //p' "$sources/Dockerfile")
release=${base#debian:} release=${release%-slim}
echo "==== the base, $base"
debootstrap --variant=minbase "$release" "$box/base" >"$box/debootstrap.log" || { tail "$box/debootstrap.log"; exit 1; }
container=$("${tool[@]}" from scratch)
if [ -n "${PIP_CERT:-}" ]; then
    install -D -m 644 "$PIP_CERT" "$box/base/opt/index.crt"
    "${tool[@]}" config --env PIP_CERT=/opt/index.crt "$container"
fi
"${tool[@]}" copy -q "$container" "$box/base" / >/dev/null
"${tool[@]}" commit -q --rm "$container" "docker.io/library/$base" >/dev/null
rm -rf "$box/base"

echo "==== the image"
git clone --quiet "$sources" "$box/sources"
"${tool[@]}" build --pull=never --isolation chroot --network host -t mallob-py "$box/sources" >"$box/build.log" 2>&1 ||
    { tail -40 "$box/build.log"; exit 1; }

container=$("${tool[@]}" from --pull-never mallob-py)
mkdir "$box/api"
chown 12345:12345 "$box/api"
# as docker run --user 12345:12345 -v .../api:/api
inside() { "${in_container[@]}" --user 12345:12345 -v "$box/api:/api" "$container" -- "$@" </dev/null; }
behind() {
    setsid "${in_container[@]}" --user 12345:12345 -v "$box/api:/api" "$container" -- "$@" </dev/null >"$box/$2.log" 2>&1 &
    background+=($!) # its process group: a child without job control leads none yet
}
await() { # FILE WORDS
    for _ in $(seq 600); do grep -q "$2" "$1" 2>/dev/null && return; sleep 0.2; done
    cat "$1" >&2
    return 1
}

echo "==== a service in the caller's folder, as a user without a name"
behind mallob-py serve -n 2 --api-dir /api
await "$box/serve.log" accepting
printf 'p cnf 2 2\n1 2 0\n-1 2 0\n' >"$box/api/two.cnf"
chmod a+r "$box/api/two.cnf"
inside mallob-py submit --api-dir /api --output-format sat /api/two.cnf >"$box/answer" 2>/dev/null || [ $? = 10 ]
grep -x 's SATISFIABLE' "$box/answer"
inside mallob-py submit --api-dir /api --application QUEENS --set n=6..8 --wait | tee "$box/table"
grep -q ' 92 ' "$box/table"
[ "$(stat -c %u "$box/api/jobs.0")" = 12345 ]

echo "==== its page"
behind mallob-py web --api-dir /api --port 0
await "$box/web.log" 'http://'
page=$(grep -o 'http://[^ ]*' "$box/web.log" | head -1)
curl -sf "${page%%#*}" | grep -q '<title>'
curl -sf -H "Authorization: Bearer $(cat "$box/api/web/token")" --data-binary @"$box/api/two.cnf" \
    "${page%%#*}api/jobs?wait=60" | grep -o '"resultstring": "SAT"'

echo "==== functions of a script, and the demo, which is what the image runs"
inside sh -c "mallob-py docs functions | sed -n '/^# squares.py/,/^\`\`\`/p' | grep -v '^\`\`\`' >/tmp/squares.py; python /tmp/squares.py; rm /tmp/squares.py" |
    tee "$box/squares"
grep -qx 332833500 "$box/squares"
"${in_container[@]}" "$container" -- make demo </dev/null
echo "==== the image does what the documents say"
