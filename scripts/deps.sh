#!/bin/sh
# Installs what building (or testing) ckptbench needs and this Debian machine lacks; says what.
# usage: scripts/deps.sh build|deb|gpu|test|slurm|s3     DEPS=0 never installs: it only names what is missing.
set -eu
build="gcc make pkg-config libyaml-dev libjansson-dev libssl-dev libsqlite3-dev openmpi-bin libopenmpi-dev liburing-dev libhwloc-dev libisal-dev libzstd-dev libcurl4-openssl-dev libssh2-1-dev libopenblas0 zlib1g-dev"
deb="dpkg-dev binutils"
gpu="python3-venv libcmocka-dev"
slurm="slurmctld slurmd slurm-client munge"
s3="ceph-mon ceph-osd ceph-mgr ceph-common radosgw openssl python3"
test="$gpu $deb mmdebstrap clang clang-format clang-tidy libclang-rt-14-dev fio strace sqlite3 python3 man-db
      $slurm slurmdbd mariadb-server-core mariadb-client-core charliecloud-runtime openssh-server openssh-client iproute2
      $s3 ceph-mds ceph-fuse curl nodejs mpich libmpich-dev chromium-headless-shell fonts-dejavu-core"
case "${1:-build}" in
build) wanted=$build ;;
deb) wanted="$build $deb" ;;
gpu) wanted="$build $gpu" ;;
test) wanted="$build $test" ;;
slurm) wanted="$build $slurm" ;;
s3) wanted="$build $s3" ;;
*) echo "usage: scripts/deps.sh build|deb|gpu|test|slurm|s3" >&2; exit 2 ;;
esac
command -v dpkg-query >/dev/null || { echo "deps: not a Debian system; needed are: $wanted" >&2; exit 0; }
missing=""
for package in $wanted; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "${DEPS:-1}" = 0 ]; then
    echo "deps: missing, not installed because DEPS=0:$missing" >&2
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    root=""
elif command -v sudo >/dev/null; then
    root=sudo
else
    echo "deps: missing:$missing; neither root nor sudo here. Ask an administrator, or go on with DEPS=0" >&2
    exit 1
fi
echo "deps: installing with apt:$missing"
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -qq
# shellcheck disable=SC2086 # a list of package names
$root apt-get install -y -qq --no-install-recommends $missing >/dev/null
