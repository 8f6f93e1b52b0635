# Prints the state of a node that repairs may change. The directories to look through are the arguments.
# Lines are ITEM<tab>TEXT below a line "## CATEGORY". POSIX sh; nothing here changes anything.
set -eu
export LC_ALL=C
echo "## package"
dpkg-query -W -f '${Package}\t${Version} ${db:Status-Status}\n'
echo "## unit"
systemctl list-units --all --plain --no-legend --full --type=service,socket,timer,mount,swap |
  awk '{ print $1 "\t" $3 }'
echo "## enabled"
systemctl list-unit-files --plain --no-legend --full | awk '{ print $1 "\t" $2 }'
echo "## file"
for tree in "$@"; do
  [ -e "$tree" ] || continue
  find "$tree" -xdev ! -type d -printf '%p\t%u:%g %m %l\n' | sort
done
echo "## content"
for tree in "$@"; do
  [ -e "$tree" ] || continue
  find "$tree" -xdev -type f -print0 | xargs -0 -r sha256sum | awk '{ sum = $1; sub(/^[^ ]+ +/, ""); print $0 "\t" sum }' | sort
done
echo "## account"
awk -F: '{ print $1 "\t" $3 ":" $4 ":" $6 ":" $7 }' /etc/passwd
echo "## sysctl"
for name in kernel vm fs net.core net.ipv4 net.ipv6; do
  sysctl -a -r "^$name\\." 2>/dev/null
done | grep -v -E '^(kernel\.random\.|kernel\.ns_last_pid|kernel\.pty\.nr|fs\.(dentry|inode|file)-|fs\.(inode|file|dentry)|kernel\.perf_event_max_sample|net\.netfilter\.nf_conntrack_count|fs\.quota|vm\.stat_refresh|net\.ipv4\.tcp_fastopen_key|net\.ipv[46]\.route\.flush)' |
  awk -F ' = ' '{ gsub(/\t/, " "); print $1 "\t" $2 }'
echo "## firewall"
if command -v nft >/dev/null; then nft -s list ruleset | awk '/^table/ { name = $2 " " $3 } { gsub(/\t/, " "); text[name] = text[name] $0 ";" } END { for (n in text) print n "\t" text[n] }'; fi
echo "## mount"
awk '$3 != "tmpfs" && $3 != "autofs" && $3 != "ramfs" { print $2 "\t" $1 " " $3 " " $4 }' /proc/self/mounts
echo "## interface"
for path in /sys/class/net/*; do
  name=${path##*/}
  printf '%s\tmtu %s flags %s qdisc %s\n' "$name" "$(cat "$path/mtu")" "$(cat "$path/flags")" "$(tc qdisc show dev "$name" 2>/dev/null | head -n 1 | cut -d' ' -f2)"
done
ip -o addr show | awk '{ print $2 " " $3 " " $4 "\tthere" }'
ip route show | awk '{ print $1 "\t" $0 }'
echo "## process"
ps -eo user=,comm= --sort=user,comm | grep -E ' (cron|rsyslogd|node_exporter|prometheus|chronyd|systemd-timesyn)' | uniq | awk '{ print $2 "\t" $1 }' || test $? = 1
