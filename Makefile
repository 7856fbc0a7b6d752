# ckptbench: `make help` lists what there is to make.
# BUILD is where everything lands; OPTIMIZE=-O1 builds faster; SANITIZE=address,undefined or thread builds a checked variant there.
VERSION  := 0.1.0
COMMIT   := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BUILD    ?= build
SANITIZE ?=
WERROR   ?=
DEPS     ?= 1
PREFIX   ?= /usr/local
DESTDIR  ?=
CC       := gcc
PYTHON   ?= python3

# Optional libraries cost a feature when they are absent, never the build.
have      = $(shell pkg-config --exists $(1) && echo yes)
REQUIRED  := yaml-0.1 jansson libcrypto libssl sqlite3
LIBURING  := $(call have,liburing)
HWLOC     := $(call have,hwloc)
ISAL      := $(call have,libisal)
ZSTD      := $(call have,libzstd)
CURL      := $(call have,libcurl)
SSH2      := $(call have,libssh2)
ZLIB      := $(call have,zlib)
PMIX      := $(call have,pmix)
MPICC     := $(shell command -v mpicc 2>/dev/null)
MPI       := $(if $(shell $(if $(MPICC),$(MPICC),false) --showme:version 2>/dev/null),openmpi,mpich)

IDENTITY := -DCKPTBENCH_VERSION='"$(VERSION)"' -DCKPTBENCH_COMMIT='"$(COMMIT)"' -DCKPTBENCH_PREFIX='"$(PREFIX)"'
CPPFLAGS += -I. -D_GNU_SOURCE \
            $(if $(LIBURING),-DHAVE_LIBURING) $(if $(HWLOC),-DHAVE_HWLOC) $(if $(ISAL),-DHAVE_ISAL) \
            $(if $(ZSTD),-DHAVE_ZSTD) $(if $(CURL),-DHAVE_CURL) $(if $(SSH2),-DHAVE_SSH2) $(if $(ZLIB),-DHAVE_ZLIB)
WARNINGS := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wconversion -Wno-missing-field-initializers
OPTIMIZE ?= -O3
CFLAGS   += -std=c11 $(OPTIMIZE) -g -pthread $(WARNINGS) $(if $(WERROR),-Werror) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -O1 -Wno-format-truncation)
LDFLAGS  += -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE))

LIBS_core  := $(shell pkg-config --libs yaml-0.1 jansson libssl libcrypto 2>/dev/null) $(if $(ISAL),-lisal) -lm
LIBS_ckpt  := $(if $(ZSTD),-lzstd)
LIBS_store := $(if $(LIBURING),-luring) $(if $(CURL),-lcurl)
LIBS_db    := -lsqlite3
LIBS_agent := $(if $(HWLOC),-lhwloc)
LIBS_jobs  := $(if $(SSH2),-lssh2)
LIBS_worker = $(if $(ZLIB),-lz) -ldl $(MPI_LIBS)
MPI_CFLAGS := $(if $(MPICC),$(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile-info 2>/dev/null | cut -d' ' -f2-))
PMIX_CFLAGS := $(if $(PMIX),-DHAVE_PMIX $(patsubst -I%,-isystem %,$(shell pkg-config --cflags-only-I pmix)))
MPI_LIBS   := $(if $(MPICC),$(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link-info 2>/dev/null | cut -d' ' -f2-))

ROOMS    := core run store ckpt setup db jobs comm engine suite train worker agent cli lib
sources   = $(sort $(wildcard $(1)/*.c $(1)/*/*.c))
objects   = $(patsubst %.c,$(BUILD)/%.o,$(filter-out %_main.c,$(call sources,$(1))))

# The CUDA plugin, where nvcc and the libraries are: of the system, or of the Python packages that `make cuda`
# installs into build/cuda. The programs never link it.
CUDA      := $(firstword $(patsubst %/bin/nvcc,%,$(wildcard $(CUDA_HOME)/bin/nvcc build/cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc /usr/local/cuda/bin/nvcc /usr/local/cuda-13*/bin/nvcc)) $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)))
CUDA_PIP  := $(firstword $(wildcard build/cuda/lib/python3*/site-packages/nvidia))
CUDA_DIRS := $(if $(CUDA_PIP),$(CUDA_PIP)/nccl $(CUDA_PIP)/cu13) $(CUDA)
first_in   = $(firstword $(foreach folder,$(CUDA_DIRS) /usr,$(wildcard $(addprefix $(folder)/,$(1)))))
NCCL_SO   := $(call first_in,lib/libnccl.so.2 lib64/libnccl.so.2 lib/x86_64-linux-gnu/libnccl.so.2)
CUBLAS_SO := $(call first_in,lib/libcublasLt.so.13 lib64/libcublasLt.so.13 lib/x86_64-linux-gnu/libcublasLt.so.13)
CUDART_A  := $(call first_in,lib/libcudart_static.a lib64/libcudart_static.a)
PLUGIN    := $(if $(and $(CUDA),$(NCCL_SO),$(CUBLAS_SO),$(CUDART_A)),$(BUILD)/ckptbench-cuda.so)
PROGRAMS := $(addprefix $(BUILD)/,ckptbench ckptbench-agent ckptbench-worker)
LIBRARY  := $(BUILD)/libckptbench.so
UNIT     := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))
TOOLS    := $(patsubst tests/tools/%.c,$(BUILD)/tests/%,$(wildcard tests/tools/*.c))

.PHONY: all
all: $(PROGRAMS) $(LIBRARY) $(BUILD)/ckptbench.1 $(BUILD)/ckptbench.bash $(if $(SANITIZE),,plugin) ## build the programs, the library, the manual page, the completion and, where nvcc and its libraries are, the CUDA plugin

$(BUILD)/flags: FORCE
	@mkdir -p $(BUILD); echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' | cmp -s - $@ || echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' > $@
.PHONY: FORCE
FORCE:

$(BUILD)/identity: FORCE
	@mkdir -p $(BUILD); echo '$(VERSION) $(COMMIT) $(PREFIX)' | cmp -s - $@ || echo '$(VERSION) $(COMMIT) $(PREFIX)' > $@
$(BUILD)/core/version.o: CPPFLAGS += $(IDENTITY)
$(BUILD)/core/version.o: $(BUILD)/identity
$(BUILD)/lint/core/version.tidy: CPPFLAGS += $(IDENTITY)
build/fuzz/%: CPPFLAGS += $(IDENTITY)
$(BUILD)/agent/attempt/mpi_launcher.o $(BUILD)/lint/agent/attempt/mpi_launcher.tidy build/fuzz/agent/attempt/mpi_launcher.o: CPPFLAGS += -DCKPTBENCH_MPI='"$(MPI)"'
# gcc takes MPICH's MPI_STATUSES_IGNORE, which is the address 1, for an array that is too short.
$(BUILD)/comm/comm_measure.o: CFLAGS += $(if $(filter mpich,$(MPI)),-Wno-stringop-overflow)
$(BUILD)/comm/comm_mpi.o $(BUILD)/comm/comm_measure.o: CPPFLAGS += $(MPI_CFLAGS)
$(BUILD)/comm/comm_fence.o $(BUILD)/lint/comm/comm_fence.tidy build/fuzz/comm/comm_fence.o \
$(BUILD)/cli/doctor/libraries.o: CPPFLAGS += $(PMIX_CFLAGS)
# Sums in vectors where a loop says so, multiply and add in one: what else changes values is left alone. Threaded
# jumps would split loops at the bounds of exponentials, so that none becomes vectors.
TRAIN_KERNELS := $(BUILD)/engine/kernels.o $(BUILD)/plugin/engine/kernels.o
$(TRAIN_KERNELS): Makefile
$(TRAIN_KERNELS): CFLAGS += -fopenmp-simd -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-thread-jumps
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

define room_library
$(BUILD)/lib$(1).a: $(call objects,$(1))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach room,$(ROOMS),$(eval $(call room_library,$(room))))

library   = $(patsubst %,$(BUILD)/lib%.a,$(1))
# A wheel of the Python package puts the shared libraries that it carries there; elsewhere there is no such folder.
CARRIED   := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/libs'
$(BUILD)/ckptbench: $(BUILD)/cli/ckptbench_main.o $(call library,cli db jobs setup ckpt store run core)
	$(CC) $(LDFLAGS) $(CARRIED) -o $@ $^ $(LIBS_db) $(LIBS_jobs) $(LIBS_ckpt) $(LIBS_store) $(LIBS_core)
$(BUILD)/ckptbench-agent: $(BUILD)/agent/agent_main.o $(call library,agent setup store run core)
	$(CC) $(LDFLAGS) $(CARRIED) -o $@ $^ $(LIBS_agent) $(LIBS_store) $(LIBS_core)
$(BUILD)/ckptbench-worker: $(BUILD)/worker/worker_main.o $(call library,worker suite train engine comm setup ckpt store run core)
	$(CC) $(LDFLAGS) $(CARRIED) -o $@ $^ $(LIBS_worker) $(LIBS_ckpt) $(LIBS_store) $(LIBS_core)

# Files that the plugin has of its own: it takes nothing from the program that loads it.
PLUGIN_SHARED := core/err.c core/clock.c core/units.c ckpt/dtype.c ckpt/region.c engine/device_values.c engine/huge_memory.c
PLUGIN_C      := $(sort $(wildcard cuda/*.c)) $(PLUGIN_SHARED)
PLUGIN_OBJECTS := $(patsubst %.c,$(BUILD)/plugin/%.o,$(PLUGIN_C)) $(addprefix $(BUILD)/plugin/cuda/,value_kernels.o train_kernels.o)
# Volta is past; code for Ampere, Ada, Hopper and Blackwell, and PTX for what comes.
CUDA_ARCH ?= $(foreach arch,80 89 90 100,-gencode arch=compute_$(arch),code=sm_$(arch)) -gencode arch=compute_100,code=compute_100
PLUGIN_INCLUDES := $(addprefix -isystem ,$(wildcard $(addsuffix /include,$(CUDA_DIRS))))
.PHONY: plugin cuda
plugin: $(PLUGIN)
	@$(if $(PLUGIN),:,echo "plugin: no $(BUILD)/ckptbench-cuda.so, since nvcc, NCCL or cuBLASLt is missing (make cuda installs them): no device=cuda" >&2)
$(BUILD)/plugin/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(PLUGIN_INCLUDES) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c $< -o $@
$(BUILD)/plugin/cuda/%.o: cuda/%.cu
	@mkdir -p $(@D)
	$(CUDA)/bin/nvcc -std=c++20 -O3 -I. $(CUDA_ARCH) -Xcompiler -fPIC,-fvisibility=hidden -MMD -MP -c $< -o $@
$(BUILD)/ckptbench-cuda.so: $(PLUGIN_OBJECTS)
	$(CC) -shared -Wl,--no-undefined -o $@ $^ $(CUDART_A) $(NCCL_SO) $(CUBLAS_SO) \
	    $(foreach so,$(NCCL_SO) $(CUBLAS_SO),-Wl,-rpath,$(abspath $(dir $(so)))) -ldl -lpthread -lrt -lm -lstdc++

# The engine for other programs (include/ckptbench.h): only what it needs of the rooms below, without MPI.
LIBRARY_ABI   := 1
LIBRARY_ROOMS := $(filter-out comm/comm_mpi.c comm/comm_measure.c comm/comm_fence.c %_main.c,$(foreach room,engine comm setup ckpt store run core,$(call sources,$(room))))
$(BUILD)/plugin/core/version.o: CPPFLAGS += $(IDENTITY)
$(BUILD)/plugin/core/version.o: $(BUILD)/identity
$(BUILD)/plugin/rooms.a: $(patsubst %.c,$(BUILD)/plugin/%.o,$(LIBRARY_ROOMS))
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libckptbench.so: $(patsubst %.c,$(BUILD)/plugin/%.o,$(call sources,lib)) $(BUILD)/plugin/rooms.a lib/ckptbench.map
	$(CC) -shared $(LDFLAGS) $(CARRIED) -Wl,-soname,libckptbench.so.$(LIBRARY_ABI) -Wl,--version-script=lib/ckptbench.map \
	    $(if $(SANITIZE),,-Wl,--no-undefined) -o $@.$(LIBRARY_ABI) $(filter %.o %.a,$^) -Wl,--as-needed $(LIBS_ckpt) $(LIBS_store) $(LIBS_core) -ldl
	ln -sf $(@F).$(LIBRARY_ABI) $@

# A plugin whose device is a fake on this machine, for tests of whole runs.
FAKE_PLUGIN := $(BUILD)/tests/fake-plugin.so
FAKE_PLUGIN_C := tests/plugin/fake_plugin.c core/err.c core/clock.c core/hash.c ckpt/dtype.c ckpt/region.c ckpt/payload.c core/blas.c engine/device_math.c engine/kernels.c
$(FAKE_PLUGIN): $(patsubst %.c,$(BUILD)/plugin/%.o,$(FAKE_PLUGIN_C))
	@mkdir -p $(@D)
	$(CC) -shared $(LDFLAGS) $(if $(SANITIZE),,-Wl,--no-undefined) -o $@ $^ -Wl,--as-needed $(LIBS_core) -lm -ldl

# The CUDA plugin's own source on this machine's processor, and what proves it on a GPU.
CUDA_ON_CPU := $(foreach kind,$(if $(findstring address,$(SANITIZE)),asan,$(if $(SANITIZE)$(filter mpich,$(MPI)),,checked plain)),$(BUILD)/tests/cuda_on_cpu/$(kind)/ckptbench-cuda.so)
$(CUDA_ON_CPU): $(wildcard tests/cuda_on_cpu/* cuda/* engine/device*.h store/device_files.h) $(filter-out cuda/%,$(PLUGIN_C))
	@mkdir -p $(@D)
	@CC="$(CC)" tests/cuda_on_cpu/build.sh . $(@D) $(notdir $(patsubst %/,%,$(@D)))
GPU_TESTS := $(addprefix $(BUILD)/tests/,test_gpu test_gpu_train test_gpu_large test_gpu_library)

$(BUILD)/ckptbench.1: $(BUILD)/ckptbench
	$(BUILD)/ckptbench man > $@
$(BUILD)/ckptbench.bash: $(BUILD)/ckptbench
	$(BUILD)/ckptbench completion > $@

ALL_LIBRARIES := $(call library,$(foreach room,agent lib worker suite train engine comm cli db jobs setup ckpt store run core,$(if $(call objects,$(room)),$(room))))
ALL_LIBS      := $(LIBS_ckpt) $(LIBS_db) $(LIBS_jobs) $(LIBS_agent) $(LIBS_worker) $(LIBS_store) $(LIBS_core)
$(BUILD)/tests/%: tests/unit/%.c $(ALL_LIBRARIES)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(ALL_LIBRARIES) -lcmocka $(ALL_LIBS)
$(BUILD)/tests/test_library_memory: LDFLAGS += -Wl,--wrap=malloc -Wl,--wrap=calloc
$(BUILD)/tests/test_library_record: LDFLAGS += -Wl,--wrap=packing_unpack
$(BUILD)/tests/test_library_warm: LDFLAGS += -Wl,--wrap=plan_key_of -Wl,--wrap=store_submit
$(BUILD)/tests/test_native_gaps: LDFLAGS += -Wl,--wrap=store_submit
$(BUILD)/tests/test_power_cut_saves: LDFLAGS += -Wl,--wrap=power_cut_count
$(BUILD)/tests/test_store_calls: LDFLAGS += -Wl,--wrap=sysconf
$(BUILD)/tests/plain_triad: CFLAGS += -fopenmp
$(BUILD)/tests/plain_ping_pong: CPPFLAGS += $(MPI_CFLAGS)
$(BUILD)/tests/%: tests/gpu/%.c $(ALL_LIBRARIES)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(ALL_LIBRARIES) -lcmocka $(ALL_LIBS)
$(BUILD)/tests/%: tests/tools/%.c $(ALL_LIBRARIES)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(ALL_LIBRARIES) $(ALL_LIBS)

.PHONY: dist deps demo demo-s3 demo-slurm test test-long unit lint bench bench-report bench-s3 bench-slurm bench-suite fuzz install clean help
deps: ## install what building needs (apt, as root or through sudo); DEPS=0 only names it
	@DEPS=$(DEPS) scripts/deps.sh build

# Before what shows something: the programs, without make's own words.
QUIETLY_BUILT = [ -x $(BUILD)/ckptbench-worker ] || echo "building into $(BUILD)/, which takes a minute or two"; $(MAKE) --no-print-directory -s -j2 all

demo: ## install what is missing, build, run gpt2 on 4 ranks, and compare buffered with direct I/O
	@DEPS=$(DEPS) scripts/deps.sh build
	@$(QUIETLY_BUILT)
	@scripts/demo.sh $(BUILD)

demo-slurm: ## a Slurm cluster of four nodes on this machine to play with, taken away when you leave
	@DEPS=$(DEPS) scripts/deps.sh slurm
	@$(QUIETLY_BUILT)
	@scripts/demo_slurm.sh $(BUILD)

demo-s3: ## the same with S3: a server in memory (Ceph RGW, about 15 s to start), disk against bucket
	@DEPS=$(DEPS) scripts/deps.sh s3
	@$(QUIETLY_BUILT)
	@PYTHON=$(PYTHON) scripts/demo_s3.sh $(BUILD)

cuda: ## install nvcc, NCCL and cuBLAS into build/cuda where they are missing; build the CUDA plugin and what proves it (no GPU needed)
	@DEPS=$(DEPS) scripts/deps.sh gpu
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/cuda.sh build/cuda
	@$(MAKE) --no-print-directory -s -j2 all $(GPU_TESTS) $(BUILD)/tests/plain_cuda

.PHONY: test-gpu bench-gpu prove-gpu
test-gpu: ## prove the CUDA plugin on a GPU of this machine; fails where there is none
	@DEPS=$(DEPS) scripts/deps.sh gpu
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/cuda.sh build/cuda
	@$(MAKE) --no-print-directory -s -j2 all $(GPU_TESTS)
	@for program in $(GPU_TESTS); do CKPTBENCH_CUDA_PLUGIN=$(abspath $(BUILD))/ckptbench-cuda.so $$program || exit 1; done
	@$(PYTHON) tests/gpu/prove.py $(BUILD)

prove-gpu: ## build, test and measure on a GPU of this machine, and write every result to one file, ckptbench-gpu.md
	@$(PYTHON) tests/gpu/prove_gpu.py --build $(BUILD)

bench-gpu: ## a GPU of this machine against a plain CUDA program and, with TORCH_PYTHON=a Python that has it, PyTorch
	@DEPS=$(DEPS) scripts/deps.sh gpu
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/cuda.sh build/cuda
	@$(MAKE) --no-print-directory -s -j2 all $(BUILD)/tests/plain_cuda
	@$(PYTHON) tests/bench/bench_gpu.py --build $(BUILD)

# Only the CUDA plugin's builder makes it: a program of CUDA's own, and no part of ours.
$(BUILD)/tests/plain_cuda: tests/bench/plain_cuda.cu
	@mkdir -p $(@D)
	$(CUDA)/bin/nvcc -O3 $(CUDA_ARCH) -L$(dir $(CUDART_A)) -o $@ $<

VENV := build/venv
test: ## install what tests need, build with warnings as errors, run every test
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 WERROR=1 all tests
	@$(PYTHON) tests/run.py --build $(BUILD) --python $(VENV)/bin/python

FUZZ_SECONDS ?= 10
test-long: ## the same under ASan, UBSan and TSan; fuzzers (FUZZ_SECONDS each); random kills; slow ends of jobs
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 WERROR=1 all tests
	@$(PYTHON) tests/long.py --python $(VENV)/bin/python --fuzz-seconds $(FUZZ_SECONDS)

.PHONY: checked
checked: ## build what test-long runs: the programs and tests with sanitizers, the fuzzers
	@$(MAKE) --no-print-directory -s -j2 BUILD=build/asan SANITIZE=address,undefined all tests
	@$(MAKE) --no-print-directory -s -j2 BUILD=build/tsan SANITIZE=thread all tests
	@$(MAKE) --no-print-directory -s -j2 BUILD=build/mpich MPICC=mpicc.mpich OPTIMIZE=-O1 WARNINGS= all tests
	@$(MAKE) --no-print-directory -s -j2 fuzz

.PHONY: tests
tests: $(UNIT) $(TOOLS) $(FAKE_PLUGIN) $(CUDA_ON_CPU) $(if $(CUDA_ON_CPU),$(GPU_TESTS))

unit: $(UNIT) ## build and run the unit tests alone
	@$(PYTHON) tests/run.py --build $(BUILD) --unit

TIDY := $(patsubst %.c,$(BUILD)/lint/%.tidy,$(foreach room,$(ROOMS),$(call sources,$(room))))
# The analyzer is all of the cost: with its usual bound on paths (225,000 nodes) lint takes about 2.5 times as long.
ANALYZER := $(addprefix --extra-arg=,-Xclang -analyzer-config -Xclang max-nodes=75000)
$(BUILD)/lint/%.tidy: %.c .clang-tidy
	@mkdir -p $(@D)
	@$(CC) -std=c11 $(CPPFLAGS) $(MPI_CFLAGS) -MM -MP -MT $@ -MF $(@:.tidy=.d) $<
	@echo clang-tidy $<
	@clang-tidy --quiet $(ANALYZER) $< -- -std=c11 $(CPPFLAGS) $(MPI_CFLAGS) 2>$@.log || { cat $@.log; exit 1; }
	@touch $@
lint: $(TIDY) ## layer rule, format, clang-tidy, headers that compile alone, functions that fit a screen
	@$(PYTHON) scripts/metrics_doc.py --check
	@$(PYTHON) scripts/lint.py --cc $(CC)

bench: ## the speed of this build against its peers, as ratios with intervals (takes a while)
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all tests
	@$(VENV)/bin/python tests/bench/bench.py --build $(BUILD)
	@[ "$$(id -u)" != 0 ] || $(VENV)/bin/python tests/bench/bench.py --build $(BUILD) --only disk --user nobody --json build/bench-user.json

bench-s3: ## the S3 client against s5cmd, boto3 and the S3 connector, with faults, a capped server, a long list
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all
	@$(VENV)/bin/python tests/bench/bench_s3.py --build $(BUILD)

bench-report: ## what trace=full costs, and the time of a site of 10,000 runs
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all tests
	@$(VENV)/bin/python tests/bench/bench_report.py --build $(BUILD)

bench-suite: ## the cluster suite against an OpenMP triad, OpenBLAS, plain MPI and fio; how long all of it takes
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all tests
	@$(VENV)/bin/python tests/bench/bench_suite.py --build $(BUILD)

.PHONY: bench-watch
bench-watch: ## what `ckptbench watch` costs a training: wall time and CPU of its saves, its steps
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all
	@$(VENV)/bin/python tests/bench/bench_watch.py --build $(BUILD)

bench-slurm: ## jobs on a Slurm of four nodes on this machine, beside sbatch and srun; pools, status, rendezvous
	@DEPS=$(DEPS) scripts/deps.sh test
	@$(MAKE) --no-print-directory -s -j2 all tests
	@$(PYTHON) tests/bench/bench_slurm.py --build $(BUILD)

.PHONY: bench-train
bench-train: ## training against PyTorch eager on the CPU: tokens a second and memory
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 $(BUILD)/tests/train_probe
	@$(VENV)/bin/python tests/bench/bench_train.py --build $(BUILD)

.PHONY: bench-torch
bench-torch: ## ckptbench.checkpoint inside PyTorch against torch.distributed.checkpoint and its S3 connector
	@DEPS=$(DEPS) scripts/deps.sh test
	@DEPS=$(DEPS) PYTHON=$(PYTHON) scripts/venv.sh $(VENV)
	@$(MAKE) --no-print-directory -s -j2 all
	@$(VENV)/bin/python tests/bench/bench_torch.py --build $(BUILD)

FUZZERS := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_FLAGS = $(CPPFLAGS) -std=c11 -O1 -g -fsanitize=$(1),address,undefined -fno-sanitize-recover=undefined -pthread
FUZZED    := $(patsubst %.c,build/fuzz/%.o,$(filter-out %_main.c,$(foreach room,$(ROOMS),$(call sources,$(room)))))
build/fuzz/comm/comm_mpi.o build/fuzz/comm/comm_measure.o: CPPFLAGS += $(MPI_CFLAGS)
build/fuzz/%.o: %.c Makefile
	@mkdir -p $(@D)
	clang $(call FUZZ_FLAGS,fuzzer-no-link) -MMD -MP -c $< -o $@
build/fuzz/all.a: $(FUZZED)
	@rm -f $@
	ar rcs $@ $^
build/fuzz/%: tests/fuzz/%.c build/fuzz/all.a
	@mkdir -p $(@D)
	clang $(call FUZZ_FLAGS,fuzzer) -o $@ $^ -Wl,--as-needed $(ALL_LIBS)
fuzz: $(FUZZERS) ## build the fuzzers

# What other machines need to build the programs: `site add` carries it there.
SOURCES := $(BUILD)/ckptbench-sources.tar.gz
dist: ## the sources as an archive beside the programs, for `ckptbench site add`
	@mkdir -p $(BUILD)
	@tar -czf $(SOURCES).$$$$ --exclude=__pycache__ Makefile README.md scripts share experiments python cuda include $(ROOMS) && mv $(SOURCES).$$$$ $(SOURCES)

.PHONY: deb
deb: ## a Debian package of the programs, the library and the Python package in build/deb
	@DEPS=$(DEPS) scripts/deps.sh deb
	@$(QUIETLY_BUILT)
	@scripts/deb.sh $(BUILD) $(VERSION)

# LIBRARY= leaves it out, as on sites that only run the programs.
.PHONY: install-library
install-library:
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 include/ckptbench.h $(DESTDIR)$(PREFIX)/include
	install -m 755 $(LIBRARY).$(LIBRARY_ABI) $(DESTDIR)$(PREFIX)/lib
	ln -sf libckptbench.so.$(LIBRARY_ABI) $(DESTDIR)$(PREFIX)/lib/libckptbench.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' lib/ckptbench.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/ckptbench.pc

install: all dist ## install under PREFIX (default /usr/local), into DESTDIR
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	           $(DESTDIR)$(PREFIX)/share/ckptbench/adapters $(DESTDIR)$(PREFIX)/share/ckptbench/experiments
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	$(if $(PLUGIN),install -d $(DESTDIR)$(PREFIX)/lib/ckptbench; install -m 755 $(PLUGIN) $(DESTDIR)$(PREFIX)/lib/ckptbench)
	install -m 644 $(BUILD)/ckptbench.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(BUILD)/ckptbench.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ckptbench
	install -m 644 share/adapters/*.py $(DESTDIR)$(PREFIX)/share/ckptbench/adapters
	install -d $(DESTDIR)$(PREFIX)/share/ckptbench/python/ckptbench
	install -m 644 python/ckptbench/*.py $(DESTDIR)$(PREFIX)/share/ckptbench/python/ckptbench
	for file in $$(cd share && find watch -type f ! -name '*.pyc'); do install -D -m 644 share/$$file $(DESTDIR)$(PREFIX)/share/ckptbench/$$file; done
	install -m 644 $(SOURCES) $(DESTDIR)$(PREFIX)/share/ckptbench
	install -d $(DESTDIR)$(PREFIX)/share/ckptbench/report/charts $(DESTDIR)$(PREFIX)/share/ckptbench/report/echarts
	install -m 644 share/report/page.html share/report/*.css share/report/*.js $(DESTDIR)$(PREFIX)/share/ckptbench/report
	install -m 644 share/report/charts/*.js $(DESTDIR)$(PREFIX)/share/ckptbench/report/charts
	install -m 644 share/report/echarts/echarts.js share/report/echarts/LICENSE* share/report/echarts/NOTICE $(DESTDIR)$(PREFIX)/share/ckptbench/report/echarts
	install -m 644 experiments/*.yaml $(DESTDIR)$(PREFIX)/share/ckptbench/experiments
	$(if $(LIBRARY),@$(MAKE) --no-print-directory -s install-library)

clean: ## remove what was built, but not the Python environment
	find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 14

# Of this build alone: others below build/ may be under way, their files half written.
-include $(wildcard $(foreach folder,$(ROOMS) plugin lint tests,$(BUILD)/$(folder)/*.d $(BUILD)/$(folder)/*/*.d $(BUILD)/$(folder)/*/*/*.d))
-include $(if $(filter fuzz build/fuzz/%,$(MAKECMDGOALS)),$(wildcard build/fuzz/*/*.d build/fuzz/*/*/*.d))
