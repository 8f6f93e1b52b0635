# Builds the lab kernel out of Debian's source package. Runs with `sh -e`; needs no root.
#   $1 the .deb of linux-source   $2 the wanted options   $3 directory for the results   $4 directory to build in
#   $5 how many compilers at once
# Leaves in $3: `kernel`, and `modules.tar` with usr/lib/modules.
set -eu
package=$1 wanted=$2 results=$3 work=$4 jobs=$5
export KBUILD_BUILD_USER=groundfault KBUILD_BUILD_HOST=lab KBUILD_BUILD_TIMESTAMP=@0 LC_ALL=C

# Of tools/testing nothing is built; the documentation is, for its Kconfig.
mkdir -p "$work/source" "$work/out"
name=$(basename "$package"); name=${name%%_*}
dpkg-deb --fsys-tarfile "$package" \
  | tar --extract --to-stdout "./usr/src/$name.tar.xz" \
  | tar --extract --xz --directory "$work/source" --strip-components 1 --exclude "$name/tools/testing"

make --silent -C "$work/source" O="$work/out" x86_64_defconfig
cd "$work/out"
../source/scripts/kconfig/merge_config.sh -m -O . .config ../source/kernel/configs/kvm_guest.config "$wanted" \
  >merge.log
make --silent olddefconfig

# An option whose dependencies are not met is dropped without a word: every wish is looked up.
sed -n -e 's/^# \(CONFIG_[A-Z0-9_]*\) is not set$/\1 /p' -e 's/^\(CONFIG_[A-Z0-9_]*\)=\(.*\)$/\1 \2/p' "$wanted" \
  | while read -r option value; do
    have=$(sed -n "s/^$option=//p" .config)
    [ "$have" = "$value" ] || echo "$option: wanted ${value:-not set}, is ${have:-not set}"
  done >unmet
if [ -s unmet ]; then
  echo "the kernel's configuration does not have what is wanted:" >&2
  cat unmet >&2
  exit 1
fi

make --silent -j"$jobs" bzImage modules
# Without depmod, which the root file system has and this machine may lack: it is run there.
make --silent INSTALL_MOD_PATH="$work/root/usr" INSTALL_MOD_STRIP=1 DEPMOD=true modules_install
rm -f "$work"/root/usr/lib/modules/*/build "$work"/root/usr/lib/modules/*/source
tar --create --file "$results/modules.tar" --directory "$work/root" --owner 0 --group 0 --numeric-owner \
  --sort name --mtime @0 usr
cp arch/x86/boot/bzImage "$results/kernel"
make --silent kernelrelease >"$results/release"
cp .config "$results/config"
