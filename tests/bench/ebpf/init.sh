#!/bin/sh
# First program of the bench's guest: mounts what the bench needs, runs it, powers off. No service manager, so that
# nothing else runs beside what is measured.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /tmp
ip link set lo up
busybox tar -x -f /dev/vdb -C / # a second disk
cd /opt/bench && python3 -m tests.bench.ebpf.guest >/dev/ttyS1 2>/dev/ttyS0 || echo "bench: FAILED" >/dev/ttyS0
sync
busybox poweroff -f
