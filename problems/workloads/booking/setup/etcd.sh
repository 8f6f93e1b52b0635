# All nodes at once: each member waits for the others.
set -eu
systemctl enable --quiet --now etcd.service
