#!/bin/sh
# Builds the CUDA plugin of the source tree TREE for this machine's processor: FOLDER/ckptbench-cuda.so, and a libcufile beside it.
# usage: build.sh TREE FOLDER checked|asan|plain
# checked: every access of a kernel is checked. asan: kernels and the plugin's C under ASan and UBSan. plain: neither.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
flags="-g -fPIC -fvisibility=hidden -I$here -I$tree"
case $3 in
checked) device=-fsanitize=thread host='' ;; # its calls go to runtime.cpp, not to libtsan
asan) device=-fsanitize=address,undefined host=-fsanitize=address,undefined ;;
plain) device='' host='' ;;
esac
fused= # products with sums, as nvcc has them
grep -q "^flags.* avx2 .* fma \|^flags.* fma .* avx2 " /proc/cpuinfo && fused="-mavx2 -mfma"
cd "$tree"
objects=
for name in runtime cublasLt nccl; do
    ${CXX:-g++} -std=c++17 -O3 $fused $flags -c "$here/$name.cpp" -o "$folder/$name.o"
    objects="$objects $folder/$name.o"
done
for source in cuda/*.cu; do
    name=$(basename "$source" .cu)
    { echo "#line 1 \"$tree/$source\""; sed -E -f "$here/rewrite.sed" "$source"; } > "$folder/$name.cu.cpp"
    ! grep -n '<<<\|__shared__' "$folder/$name.cu.cpp"
    ${CXX:-g++} -std=c++17 -O1 -fexpensive-optimizations -ffp-contract=fast $fused $flags $device -D__CUDACC__ -include cuda_runtime.h -c "$folder/$name.cu.cpp" -o "$folder/$name.cu.o"
    objects="$objects $folder/$name.cu.o"
done
for source in cuda/*.c core/err.c core/clock.c core/units.c ckpt/dtype.c ckpt/region.c engine/device_values.c engine/huge_memory.c; do
    object=$folder/$(echo "$source" | tr / _).o
    ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O1 $flags $host -c "$source" -o "$object"
    objects="$objects $object"
done
${CXX:-g++} -std=c++17 -O1 $flags $host -shared -Wl,-soname,libcupti.so.13 -o "$folder/libcupti.so.13" "$here/cupti.cpp"
${CXX:-g++} -std=c++17 -O1 $flags $host -shared "$here/cufile.cpp" -o "$folder/libcufile.so.0" -ldl -lpthread
${CXX:-g++} -shared $host -o "$folder/ckptbench-cuda.so" $objects -ldl -lpthread -lm
