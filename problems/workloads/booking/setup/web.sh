# w1: the way in, once there is something behind it.
set -eu
systemctl enable --quiet --now nginx.service
