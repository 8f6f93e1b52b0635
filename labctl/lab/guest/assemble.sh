# Makes a file system from a root tar and, where there is one, an agent bundle. Runs with `sh -e`, as root or
# as the root of a user namespace, so that files of all owners can be made, read and removed.
#   $1 directory for the results   $2 root tar   $3 agent bundle or ""   $4 size of the file system
#   $5 where to unpack: outside of $1, because after a kill only another run of this script may remove it
#   $6 kernel or "" for the root tar's own   $7 tar of its modules
set -eu
work=$1 rootfs=$2 bundle=$3 size=$4 tree=$5 kernel=$6 modules=$7
rm -rf "$tree"
mkdir -p "$tree"
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM HUP
tar --extract --numeric-owner --xattrs --xattrs-include='*' --file "$rootfs" --directory "$tree" --exclude './dev/*'
if [ -n "$bundle" ]; then
  tar --extract --gzip --numeric-owner --file "$bundle" --directory "$tree"
  unit=$tree/opt/groundfault/lib/node_agent/systemd/groundfault-agent.service
  cp "$unit" "$tree/etc/systemd/system/groundfault-agent.service"
  mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
  ln -sf ../groundfault-agent.service "$tree/etc/systemd/system/multi-user.target.wants/groundfault-agent.service"
  # Compiling on an emulated node would cost each first start many seconds.
  chroot "$tree" /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/groundfault/lib
fi
if [ -n "$kernel" ]; then
  rm -rf "$tree"/usr/lib/modules/*
  tar --extract --numeric-owner --file "$modules" --directory "$tree"
  chroot "$tree" /usr/sbin/depmod "$(basename "$tree"/usr/lib/modules/*)"
  cp "$kernel" "$tree/boot/groundfault-kernel"
  # All that leads to the disks is built into it.
  cp "$tree/boot/groundfault-initrd-bare" "$tree/boot/groundfault-initrd"
fi
rm -f "$tree/boot/groundfault-initrd-bare"
cp "$tree/boot/groundfault-kernel" "$work/kernel"
cp "$tree/boot/groundfault-initrd" "$work/initrd"
truncate -s "$size" "$work/disk.raw"
mke2fs -q -t ext4 -L groundfault -E lazy_itable_init=0,lazy_journal_init=0 -d "$tree" "$work/disk.raw"
