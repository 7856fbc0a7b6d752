#!/bin/sh
# Makes a Debian package of what is built in BUILD: BUILD/deb/ckptbench_VERSION_ARCH.deb, for the release it was built on.
# usage: scripts/deb.sh BUILD VERSION
set -eu
build=$1 version=$2
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
root=$stage/root
mkdir -p "$root/DEBIAN" "$stage/debian"
# Without the CUDA plugin: NCCL and cuBLAS are no packages of Debian.
make --no-print-directory -s install BUILD="$build" PREFIX=/usr DESTDIR="$root" PLUGIN=
install -m 755 scripts/demo.sh "$root/usr/share/ckptbench/demo.sh"
install -d "$root/usr/lib/python3/dist-packages"
ln -s ../../../share/ckptbench/python/ckptbench "$root/usr/lib/python3/dist-packages/ckptbench"
gzip -9n "$root/usr/share/man/man1/ckptbench.1"
programs=$(find "$root/usr/bin" "$root/usr/lib" -type f \( -perm -u+x -o -name '*.so.*' \) ! -name '*.py')
# shellcheck disable=SC2086 # a list of files without spaces
strip --strip-unneeded $programs
printf 'Source: ckptbench\n\nPackage: ckptbench\nArchitecture: any\n' >"$stage/debian/control"
# shellcheck disable=SC2086
needs=$(cd "$stage" && dpkg-shlibdeps --warnings=0 -O $programs 2>/dev/null)
cat >"$root/DEBIAN/control" <<END
Package: ckptbench
Version: $version
Architecture: $arch
Maintainer: the ckptbench developers <ckptbench@localhost>
Depends: ${needs#shlibs:Depends=}, openmpi-bin
Recommends: openssh-client
Suggests: python3
Section: utils
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: measures how fast a cluster saves and restores checkpoints
 Saves and loads the sharded training state of a real model in PyTorch's
 format from MPI ranks to a file system or S3, and says where the time went.
 Contains the library libckptbench and its Python package for PyTorch, too.
END
mkdir -p "$build/deb"
rm -f "$build"/deb/ckptbench_*.deb
dpkg-deb --build --root-owner-group "$root" "$build/deb/ckptbench_${version}_$arch.deb" >/dev/null
echo "$build/deb/ckptbench_${version}_$arch.deb"
