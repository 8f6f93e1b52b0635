# All nodes: what every machine of the service has. Runs after the files are in place.
set -eu
chmod 700 /opt/groundfault /etc/groundfault
systemctl daemon-reload
visudo --check --quiet --file=/etc/sudoers.d/oncall
sysctl --quiet --system
systemctl enable --quiet --now cron.service prometheus-node-exporter.service
