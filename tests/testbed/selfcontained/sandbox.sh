#!/bin/sh
# PID 1 of a cluster's namespaces: arranges them, then waits and reaps.
#
# usage: sandbox.sh STATE GENERATION PAUSE
set -eu
state=$1 generation=$2 pause=$3

# /proc is still the host's, so this line tells the host which process we are.
read -r stat < /proc/self/stat
read -r boot < /proc/sys/kernel/random/boot_id
printf '%s %s\n' "$boot" "$stat" > "$state/init.$generation"
mv "$state/init.$generation" "$state/init"
# A later `up` has begun anew, not knowing of us: leave it the field.
[ "$(cat "$state/generation")" = "$generation" ]

mount -t proc proc /proc
# What the node's programs keep at fixed places goes to the state directory.
mkdir -p "$state/run" "$state/var/lib" "$state/var/log" "$state/var/tmp"
ln -sfn /run "$state/var/run"
mount --bind "$state/run" /run
mount --bind "$state/var" /var
mount --make-rshared /
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
: > "$state/arranged"
exec "$pause"
