# w1 and w3: the service itself.
set -eu
python3 -m compileall -q /opt/booking
systemctl enable --quiet --now booking-api.service booking-worker.service
