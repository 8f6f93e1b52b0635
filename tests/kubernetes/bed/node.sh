# The first process of a node of the test bed, in namespaces of its own: mount, pid, net, uts, ipc. Runs with `sh -e`.
#   $1 the node's directory   $2 its name   $3 its address, with the length of the prefix   $4 the programs' directory
# It waits for its network, starts containerd, imports the images, and becomes the kubelet. All that it mounts goes
# with its namespaces: state is kept in memory, and nothing is written to this machine's own directories.
set -eu
here=$1 name=$2 address=$3 programs=$4

mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"
for directory in /run /var/lib /var/log /opt; do mount -t tmpfs -o mode=755 tmpfs "$directory"; done
# The kubelet wants these, and would set them for the whole machine: it is shown what it wants to see.
for wish in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
  file=$here/sysctl-$(basename "${wish%=*}")
  echo "${wish#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${wish%=*}"
done
mount --make-rshared /
mkdir -p /run/netns /var/log/pods /var/log/containers

# The other end of the wire is put in from outside.
tries=0
until ip link set eth0 up 2>/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { echo "no network after 10 s" >&2; exit 1; }
  sleep 0.1
done
ip link set lo up
ip address add "$address" dev eth0

PATH=$programs:$PATH
containerd --config "$here/containerd.toml" >"$here/containerd.log" 2>&1 &
tries=0
until ctr --namespace k8s.io images list >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] || { echo "containerd does not answer" >&2; exit 1; }
  sleep 0.1
done
for image in "$here"/../images/*.tar; do ctr --namespace k8s.io images import "$image"; done
kubelet --config "$here/kubelet.json" --kubeconfig "$here/../keys/node-$name.conf" --hostname-override "$name" \
  --node-ip "${address%/*}" --container-runtime remote --network-plugin cni --cni-bin-dir "$programs/../cni" \
  --container-runtime-endpoint unix:///run/containerd/containerd.sock --v 2 >"$here/kubelet.log" 2>&1 &
# This is process 1 of the namespace: whoever loses its parent becomes its child, and is waited for by the shell.
while :; do wait || :; sleep 1; done
