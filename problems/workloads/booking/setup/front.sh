# w1: names and cache, which the other nodes need, too.
set -eu
systemctl enable --quiet --now dnsmasq.service valkey-server.service
