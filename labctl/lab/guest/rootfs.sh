# Runs as mmdebstrap's last hook, `sh -c` style, with the root directory as $1: makes a Debian tree a lab node.
set -eu
root=$1

# Units that cost boot time, need a network that a lab node does not have, or act on their own later and so
# would disturb a measurement.
mask() { for unit in "$@"; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done; }
mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
  fstrim.timer xfs_scrub_all.timer systemd-tmpfiles-clean.timer man-db.timer
mask getty.target getty@tty1.service getty-static.service serial-getty@ttyS0.service \
  systemd-logind.service systemd-user-sessions.service systemd-ask-password-wall.path \
  systemd-ask-password-console.path
mask systemd-timesyncd.service systemd-networkd.service systemd-networkd.socket systemd-resolved.service \
  systemd-network-generator.service
mask ldconfig.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-firstboot.service \
  systemd-hibernate-clear.service systemd-hwdb-update.service systemd-journal-catalog-update.service \
  systemd-machine-id-commit.service systemd-pcrmachine.service systemd-pcrphase-sysinit.service \
  systemd-pcrphase.service systemd-tpm2-setup-early.service systemd-tpm2-setup.service \
  systemd-update-done.service systemd-sysusers.service systemd-pstore.service systemd-update-utmp.service \
  systemd-update-utmp-runlevel.service systemd-rfkill.service systemd-modules-load.service \
  systemd-battery-check.service systemd-creds.socket systemd-pcrextend.socket systemd-pcrlock.socket \
  systemd-sysext.socket systemd-hostnamed.socket modprobe@efi_pstore.service modprobe@drm.service \
  modprobe@fuse.service modprobe@configfs.service sys-fs-fuse-connections.mount dev-hugepages.mount \
  initrd-udevadm-cleanup-db.service sshd-keygen.service ssh.socket
for generator in systemd-gpt-auto-generator systemd-ssh-generator systemd-rc-local-generator systemd-run-generator \
  systemd-hibernate-resume-generator systemd-bless-boot-generator systemd-veritysetup-generator \
  systemd-integritysetup-generator systemd-cryptsetup-generator systemd-tpm2-generator \
  systemd-system-update-generator systemd-getty-generator systemd-sysv-generator systemd-import-generator; do
  mkdir -p "$root/etc/systemd/system-generators"
  ln -sf /dev/null "$root/etc/systemd/system-generators/$generator"
done
enable() { mkdir -p "$root/etc/systemd/system/$2.wants"; ln -sf "../$1" "$root/etc/systemd/system/$2.wants/$1"; }
enable groundfault-data.service local-fs.target
enable groundfault-booted.service multi-user.target

# One image, many nodes: nothing in it may be an identity. An empty machine-id is not a "first boot".
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/hostname" "$root/var/lib/dbus/machine-id"
: > "$root/etc/machine-id"
rm -rf "$root"/var/log/*.log "$root"/var/log/apt "$root"/var/cache/debconf/*-old "$root"/var/lib/apt/lists/*
mkdir -p "$root/srv/data" "$root/etc/groundfault"
chmod 755 "$root"/usr/lib/groundfault/*

# The initramfs: a static shell and the modules that lead to the disks, uncompressed because unpacking it is
# slower under emulation than reading it. The bare one is for a kernel that has them built in.
kernel=$(ls "$root/usr/lib/modules")
work=$root/tmp/initramfs
mkdir -p "$work/bin" "$work/dev" "$work/proc" "$work/sys" "$work/root" "$work/modules"
cp "$root/usr/bin/busybox" "$work/bin/busybox"
printf '%s' "$GROUNDFAULT_INIT" > "$work/init"
chmod 755 "$work/init"
: > "$work/modules/order"
pack() { chroot "$root" sh -c 'cd /tmp/initramfs && find . | cpio --quiet -o -H newc' > "$root/boot/$1"; }
pack groundfault-initrd-bare
for module in virtio_pci ext4 virtio_blk virtio_scsi sd_mod virtio_net qemu_fw_cfg dm_mod; do
  chroot "$root" modprobe --show-depends --set-version "$kernel" "$module"
done | while read -r verb path; do
  [ "$verb" = insmod ] || continue
  name=$(basename "$path" .xz)
  grep -qxF "$name" "$work/modules/order" && continue
  case $path in
    *.xz) chroot "$root" python3 -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' \
      "$path" > "$work/modules/$name" ;;
    *) cp "$root$path" "$work/modules/$name" ;;
  esac
  echo "$name" >> "$work/modules/order"
done
test -s "$work/modules/order"
pack groundfault-initrd
rm -rf "$work"
rm -f "$root"/boot/initrd.img* "$root"/boot/System.map*
mv "$root/boot/vmlinuz-$kernel" "$root/boot/groundfault-kernel"
