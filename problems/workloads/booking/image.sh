# Shapes the node image of the workload `booking`; its tree is $1. What a node runs is decided when it is set up.
set -eu
root=$1
run() { chroot "$root" "$@"; }

# One image, three nodes: nothing that the packages enabled starts by itself, and no cluster of PostgreSQL is in it.
rm -rf "$root/var/lib/postgresql/17" "$root/etc/postgresql/17" "$root"/var/lib/etcd/*
for unit in nginx valkey-server etcd dnsmasq postgresql prometheus-node-exporter smartmontools sysstat; do
  run systemctl disable "$unit.service"
done
rm -f "$root"/etc/systemd/system/timers.target.wants/sysstat-*.timer "$root/etc/nginx/sites-enabled/default"

run useradd --system --home-dir /opt/booking --no-create-home --shell /usr/sbin/nologin booking
# Nobody knows a password of this account; a key opens it. "!" would close it to keys, too: sshd runs without PAM.
run useradd --create-home --shell /bin/bash --password '*' --comment 'on call' oncall
run install -d -o booking -g booking -m 755 /opt/booking
run install -d -o root -g booking -m 750 /etc/booking
run install -d -o oncall -g oncall -m 700 /home/oncall/.ssh
run chmod 700 /home/oncall

# The lab's own agent is no part of the service: whoever operates it does not see what that says and keeps.
mkdir -p "$root/etc/systemd/system/groundfault-agent.service.d"
cat > "$root/etc/systemd/system/groundfault-agent.service.d/journal.conf" <<'EOF'
[Service]
LogNamespace=groundfault
EOF
cat > "$root/etc/systemd/journald@groundfault.conf" <<'EOF'
[Journal]
Storage=persistent
SystemMaxUse=16M
EOF
