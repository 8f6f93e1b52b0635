# Builds Kubernetes out of Debian's source package, with that Debian's Go, and unpacks what runs beside it.
# Runs with `sh -e`; needs no root.
#   $1 directory with the source package and the .debs   $2 directory for the results   $3 directory to build in
# Leaves in $2: bin/ (the cluster's programs, etcd, containerd, runc, busybox), cni/, and `version`.
set -eu
packages=$1 results=$2 work=$3
export LC_ALL=C

mkdir -p "$work/debs" "$work/go/src/k8s.io" "$results/bin"
for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$work/debs"; done
cp "$work"/debs/usr/bin/etcd "$work"/debs/usr/bin/containerd "$work"/debs/usr/bin/containerd-shim-runc-v2 \
  "$work"/debs/usr/bin/ctr "$work"/debs/usr/sbin/runc "$work"/debs/bin/busybox "$results/bin"
cp -r "$work/debs/usr/lib/cni" "$results/cni"

tree=$work/go/src/k8s.io/kubernetes
dpkg-source --no-check --extract "$packages"/kubernetes_*.dsc "$tree" >"$work/unpack.log"
GOROOT=$(echo "$work"/debs/usr/lib/go-1.*)
export GOROOT GOPATH="$work/go" GOCACHE="$work/gocache" GO111MODULE=off GOTOOLCHAIN=local CGO_ENABLED=0
PATH=$GOROOT/bin:$PATH
cd "$tree"

# The vendored reflect2 knows the map iterator of Go up to 1.17 only: with a later Go the API server reads wild
# pointers as soon as it writes a map as JSON. Debian has packaged a release that knows.
reflect2=vendor/github.com/modern-go/reflect2
rm -f $reflect2/*.go $reflect2/*.s
cp "$work"/debs/usr/share/gocode/src/github.com/modern-go/reflect2/*.go $reflect2
cp "$work"/debs/usr/share/gocode/src/github.com/modern-go/reflect2/*.s $reflect2
rm -f $reflect2/*_test.go

# One generated file is not in the source package: the API's schema. Its generator is; it goes over all packages
# that ask for it, and reports what breaks the naming rules, which has to be exactly what upstream knows of.
go build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
for root in pkg cmd plugin vendor/k8s.io/*/; do
  case $root in *code-generator/ | *sample-apiserver/) continue ;; esac
  grep -rl --include='*.go' '^// *+k8s:openapi-gen=' "$root" || [ $? = 1 ]
done | grep -v -e /testdata/ -e _examples | xargs -n 1 dirname | sort -u | sed 's,^,k8s.io/kubernetes/,' >"$work/asking"
"$work/openapi-gen" --logtostderr --input-dirs "$(paste -s -d , "$work/asking")" \
  --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
  --output-base "$work/go/src" --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
  --report-filename "$work/violations"
cmp "$work/violations" api/api-rules/violation_exceptions.list

# Without these words a binary calls itself v0.0.0. The tags leave out clouds and Docker, for which a kubelet waits.
version=$(sed -n '1s/.*really\([0-9.]*\)-.*/\1/p' debian/changelog)
[ -n "$version" ]
minor=${version#*.} minor=${minor%%.*}
stamp="-s -w"
for part in client-go/pkg component-base; do
  for word in gitVersion="v$version" gitMajor="${version%%.*}" gitMinor="$minor" gitTreeState=clean; do
    stamp="$stamp -X k8s.io/kubernetes/vendor/k8s.io/$part/version.$word"
  done
done
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  go build -tags "providerless dockerless" -ldflags "$stamp" -o "$results/bin/$program" "k8s.io/kubernetes/cmd/$program"
done
chmod -R u+w "$work/go"
echo "$version" >"$results/version"
