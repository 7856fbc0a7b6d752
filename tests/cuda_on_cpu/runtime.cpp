/* A CUDA device on this machine's processor, for tests: kernels run as they are written, and what they may not do is told.
 *
 * Threads of a block are fibers that run until a barrier or a shuffle, in an order that changes with every block; blocks, too, come in
 * any order. Streams do what is queued late, when somebody asks, and between streams in any order that events allow. Memory of the
 * device is closed to the host (a fault) but while the device works, surrounded by gaps, and full of NaN at first.
 *
 * Kernels compiled with -fsanitize=thread, but linked with the functions at the end of this file instead of ThreadSanitizer's, have every
 * access looked at: that it lies in memory of the device, of the block or of the thread itself; that shared memory was written before it is
 * read; that no two threads touch the same bytes, one of them writing, without a barrier between them; and that blocks of a launch do
 * not either. Sequential inside: which races are found does not depend on luck. */
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "inside.h"

#undef expf
#undef logf
#undef log

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void *address, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *address, size_t bytes);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *bytes);
/* Keeps this stack's registers on it and its pointer in `kept`, and goes on where the other stack was left. */
void cuda_on_cpu_switch(void **kept, void *other) __attribute__((visibility("hidden")));
}

#if defined(__x86_64__)
#define SAVED_WORDS 6 /* and an address to return to */
asm(R"(.text
.hidden cuda_on_cpu_switch
.globl cuda_on_cpu_switch
cuda_on_cpu_switch:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
)");
#elif defined(__aarch64__)
#define SAVED_WORDS 19 /* the address to return to is the last */
asm(R"(.text
.hidden cuda_on_cpu_switch
.globl cuda_on_cpu_switch
cuda_on_cpu_switch:
    sub sp, sp, #160
    stp d8, d9, [sp]; stp d10, d11, [sp, #16]; stp d12, d13, [sp, #32]; stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]; stp x21, x22, [sp, #80]; stp x23, x24, [sp, #96]; stp x25, x26, [sp, #112]
    stp x27, x28, [sp, #128]; stp x29, x30, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp d8, d9, [sp]; ldp d10, d11, [sp, #16]; ldp d12, d13, [sp, #32]; ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]; ldp x21, x22, [sp, #80]; ldp x23, x24, [sp, #96]; ldp x25, x26, [sp, #112]
    ldp x27, x28, [sp, #128]; ldp x29, x30, [sp, #144]
    add sp, sp, #160
    ret
)");
#endif

namespace cuda_on_cpu
{

struct now now;
std::recursive_mutex lock;

namespace
{

constexpr size_t PAGE = 4096, LATE_BYTES = 256 << 20, STACK_BYTES = 128 << 10, MOST_SHARED = 227 << 10,
                 MOST_STATIC = 48 << 10;
constexpr size_t EDGE_BYTES = 1 << 20;
constexpr uint64_t EDGE_BLOCKS = 2; /* at either end of a launch */
constexpr unsigned WARP = 32, MOST_THREADS = 1024, MOST_TOLD = 20;

uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

uint64_t random_state = setting("CUDA_ON_CPU_SEED", 1);
const int real_devices = int(setting("CUDA_ON_CPU_DEVICES", 1));
const bool only_edges = setting("CUDA_ON_CPU_EDGES", 0);
const size_t ARENA_BYTES = size_t(only_edges ? 256 : 32) << 30;
const size_t memory_bytes = setting("CUDA_ON_CPU_BYTES", size_t(8) << 30);

uint64_t random_bits()
{
    uint64_t x = random_state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* --- memory of devices --- */

struct block_of_memory {
    size_t bytes;
    int device;
};

/* Of four bytes: the last write and the last reads, packed (see `record`). */
struct word {
    uint64_t write, read;
};

struct arena {
    char *base = nullptr;
    word *words = nullptr;
    size_t next = 0, used = 0, most = 0; /* most: how far it was ever used */
    std::map<const char *, block_of_memory> blocks;

    void reserve()
    {
        if (base)
            return;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *memory = mmap(nullptr, ARENA_BYTES, PROT_NONE, flags, -1, 0);
        void *shadow = mmap(nullptr, ARENA_BYTES / 4 * sizeof(word), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED || shadow == MAP_FAILED) {
            perror("cuda_on_cpu: no address space");
            abort();
        }
        base = static_cast<char *>(memory);
        words = static_cast<word *>(shadow);
    }
    bool has(const void *address) const
    {
        return size_t(static_cast<const char *>(address) - base) < ARENA_BYTES;
    }
    /* The block that an address lies in; end(): none. */
    auto find(const void *address) const
    {
        auto at = blocks.upper_bound(static_cast<const char *>(address));
        if (at == blocks.begin())
            return blocks.end();
        --at;
        return static_cast<const char *>(address) < at->first + at->second.bytes ? at : blocks.end();
    }
};

arena memory;
/* A long test may leave memory open: closing it again after each copy is half of its time. */
int open_count = setting("CUDA_ON_CPU_STAYS_OPEN", 0) ? 1 : 0;

/* Freed addresses come back late: whoever still uses them is found. */
char *take(size_t bytes, int device)
{
    memory.reserve();
    size_t wanted = (bytes + 2 * PAGE - 1) / PAGE * PAGE + 2 * PAGE;
    if (memory.used + bytes > memory_bytes || wanted > ARENA_BYTES)
        return nullptr;
    if (memory.next > 4 * memory.used + LATE_BYTES)
        memory.next = 0;
    for (int turn = 0; turn < 2; turn++) {
        if (memory.next + wanted > ARENA_BYTES)
            memory.next = 0;
        auto after = memory.blocks.lower_bound(memory.base + memory.next);
        while (after != memory.blocks.end() && after->first < memory.base + memory.next + wanted) {
            memory.next = size_t(after->first - memory.base + after->second.bytes + 2 * PAGE - 1) / PAGE * PAGE;
            after = memory.blocks.lower_bound(memory.base + memory.next);
        }
        if (memory.next + wanted <= ARENA_BYTES)
            break;
    }
    if (memory.next + wanted > ARENA_BYTES)
        return nullptr;
    char *place = memory.base + memory.next + PAGE + 256; /* as aligned as cudaMalloc promises, and no more */
    memory.next += wanted;
    memory.most = std::max(memory.most, memory.next);
    memory.used += bytes;
    memory.blocks[place] = {bytes, device};
    mprotect(place - PAGE - 256, wanted, PROT_READ | PROT_WRITE);
    size_t written = only_edges ? std::min(bytes, EDGE_BYTES) : bytes;
    memset(place - PAGE, 0xFF, PAGE + written); /* as floats NaN */
    memset(place + bytes - written, 0xFF, written + PAGE);
    if (__asan_poison_memory_region) {
        __asan_poison_memory_region(place - PAGE, PAGE);
        __asan_poison_memory_region(place + bytes, PAGE);
    }
    if (!open_count)
        mprotect(place - PAGE - 256, wanted, PROT_NONE);
    return place;
}

void give_back(char *place)
{
    auto at = memory.blocks.find(place);
    size_t bytes = at->second.bytes, whole = (bytes + 2 * PAGE - 1) / PAGE * PAGE + 2 * PAGE;
    memory.used -= bytes;
    memory.blocks.erase(at);
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(place - PAGE - 256, whole);
    madvise(place - PAGE - 256, whole, MADV_DONTNEED);
    word *first = memory.words + (place - memory.base) / 4;
    char *from = reinterpret_cast<char *>((uintptr_t(first) + PAGE - 1) / PAGE * PAGE);
    char *to = reinterpret_cast<char *>(uintptr_t(first + bytes / 4) / PAGE * PAGE);
    if (to > from)
        madvise(from, size_t(to - from), MADV_DONTNEED);
}

/* --- what is told --- */

bool broken; /* every call fails from now on */
unsigned told;
const char *kernel_name; /* NULL: none runs */
struct call *running;

} // namespace

void violation(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    broken = true;
    if (++told > MOST_TOLD)
        return;
    if (kernel_name)
        fprintf(stderr, "cuda_on_cpu: %s<<<(%u,%u,%u), (%u,%u,%u)>>>, block (%u,%u,%u), thread (%u,%u,%u): %s\n",
                kernel_name, now.blocks.x, now.blocks.y, now.blocks.z, now.threads.x, now.threads.y, now.threads.z,
                now.block.x, now.block.y, now.block.z, now.thread.x, now.thread.y, now.thread.z, text);
    else
        fprintf(stderr, "cuda_on_cpu: %s\n", text);
}

uint64_t random_below(uint64_t bound)
{
    return random_bits() % bound;
}

opened::opened()
{
    lock.lock();
    if (open_count++ == 0 && memory.most)
        mprotect(memory.base, memory.most, PROT_READ | PROT_WRITE);
}

opened::~opened()
{
    if (--open_count == 0 && memory.most)
        mprotect(memory.base, memory.most, PROT_NONE);
    lock.unlock();
}

bool is_device_memory(const void *address, size_t bytes)
{
    auto at = memory.find(address);
    return at != memory.blocks.end() && static_cast<const char *>(address) + bytes <= at->first + at->second.bytes;
}

namespace
{

/* --- threads of a block --- */

enum state { NEW, READY, AT_BARRIER, IN_SHUFFLE, ENDED };

struct strand {
    state is;
    int fiber;
    const char *file; /* where it waits */
    int line;
    uint32_t mask;
    unsigned source;
    uint64_t value, received;
};

struct fiber {
    void *left; /* where its stack was left */
    char *stack;
    void *fake;
};

/* Segments count upwards: a block's threads between two barriers are one. */
uint64_t segment = 1, launch_first = 1, block_first = 1;
alignas(256) char shared_bytes[MOST_SHARED];
word shared_words[MOST_SHARED / 4];

struct runner {
    std::vector<fiber *> fibers;
    std::vector<int> idle, ready, fresh; /* fresh: strands that have not begun */
    std::vector<strand> strands;
    std::map<const void *, size_t> places; /* of shared variables */
    size_t shared_used = 0, shared_dynamic = 0;
    void *scheduler = nullptr;
    void *scheduler_fake = nullptr;
    const void *scheduler_bottom = nullptr;
    size_t scheduler_stack = 0;
    int strand_now = -1, fiber_now = -1;
    unsigned left = 0;

    ~runner()
    {
        for (fiber *one : fibers) {
            munmap(one->stack - PAGE, STACK_BYTES + PAGE);
            delete one;
        }
    }
    bool on_stack(const void *address) const
    {
        const char *at = static_cast<const char *>(address), *stack = fibers[size_t(fiber_now)]->stack;
        return at >= stack && at < stack + STACK_BYTES;
    }
    void become(int index)
    {
        unsigned i = unsigned(index);
        strand_now = index;
        now.thread = {i % now.threads.x, i / now.threads.x % now.threads.y, i / now.threads.x / now.threads.y};
    }
    void leave() /* the fiber, for the scheduler */
    {
        fiber *self = fibers[size_t(fiber_now)];
        if (__sanitizer_start_switch_fiber)
            __sanitizer_start_switch_fiber(&self->fake, scheduler_bottom, scheduler_stack);
        cuda_on_cpu_switch(&self->left, scheduler);
        if (__sanitizer_finish_switch_fiber)
            __sanitizer_finish_switch_fiber(self->fake, &scheduler_bottom, &scheduler_stack);
    }
    void enter(int index)
    {
        fiber_now = index;
        fiber *other = fibers[size_t(index)];
        if (__sanitizer_start_switch_fiber)
            __sanitizer_start_switch_fiber(&scheduler_fake, other->stack, STACK_BYTES);
        cuda_on_cpu_switch(&scheduler, other->left);
        if (__sanitizer_finish_switch_fiber)
            __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
        fiber_now = -1;
    }
    static void main();
    int take_fiber();
    void release_warp(unsigned first);
    void release_barrier();
    void run_block();
};

runner *active; /* of the thread that holds the lock */
thread_local runner own_runner;

/* Strands that begin one after the other need one fiber, as long as none of them waits. */
void runner::main()
{
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(nullptr, &active->scheduler_bottom, &active->scheduler_stack);
    for (;;) {
        int fiber = active->fiber_now;
        while (!active->fresh.empty()) {
            int index = active->fresh.back();
            active->fresh.pop_back();
            active->strands[size_t(index)].fiber = fiber;
            active->become(index);
            running->run();
            active->strands[size_t(active->strand_now)].is = ENDED;
            active->left--;
            if (!active->ready.empty() && random_bits() % 2) /* others may go on first */
                break;
        }
        active->idle.push_back(fiber);
        active->leave();
    }
}

int runner::take_fiber()
{
    if (idle.empty()) {
        fiber *made = new fiber();
        char *stack = static_cast<char *>(mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        mprotect(stack, PAGE, PROT_NONE);
        made->stack = stack + PAGE;
        void **top = reinterpret_cast<void **>(made->stack + STACK_BYTES - 64); /* zeros below and above */
        *top = reinterpret_cast<void *>(main);
        made->left = top - SAVED_WORDS;
        fibers.push_back(made);
        idle.push_back(int(fibers.size()) - 1);
    }
    int index = idle.back();
    idle.pop_back();
    return index;
}

/* Where all lanes that are meant have come. */
void runner::release_warp(unsigned first)
{
    uint32_t mask = strands[size_t(strand_now)].mask;
    for (unsigned i = 0; i < WARP; i++) {
        if (!(mask >> i & 1))
            continue;
        if (first + i >= strands.size()) {
            violation("a shuffle names lane %u, which the block does not have", i);
            mask &= ~(1u << i);
        } else if (strands[first + i].is != IN_SHUFFLE) {
            return;
        }
    }
    for (unsigned i = 0; i < WARP; i++) {
        if (!(mask >> i & 1))
            continue;
        strand &one = strands[first + i];
        if (one.mask != strands[size_t(strand_now)].mask || one.line != strands[size_t(strand_now)].line)
            violation("lanes of a warp are in different shuffles (%s:%d and %d)", one.file, one.line,
                      strands[size_t(strand_now)].line);
        if (!(mask >> one.source & 1))
            violation("a shuffle reads lane %u, which takes no part (%s:%d)", one.source, one.file, one.line);
        else
            one.received = strands[first + one.source].value;
    }
    for (unsigned i = 0; i < WARP; i++) {
        if (mask >> i & 1) {
            strands[first + i].is = READY;
            ready.push_back(int(first + i));
        }
    }
}

/* Nobody can go on but by a barrier of all that are left. */
void runner::release_barrier()
{
    const strand *met = nullptr;
    for (size_t i = 0; i < strands.size(); i++) {
        strand &one = strands[i];
        if (one.is == ENDED)
            continue;
        if (!met)
            met = &one;
        if (one.is != AT_BARRIER || one.line != met->line || one.file != met->file) {
            become(int(i));
            violation("waits for ever at %s:%d, since others are at %s:%d or have ended", one.file, one.line, met->file,
                      met->line);
            abort();
        }
    }
    segment++;
    for (size_t i = 0; i < strands.size(); i++) {
        if (strands[i].is == AT_BARRIER) {
            strands[i].is = READY;
            ready.push_back(int(i));
        }
    }
}

void runner::run_block()
{
    size_t count = size_t(now.threads.x) * now.threads.y * now.threads.z;
    strands.assign(count, strand{NEW, -1, "?", 0, 0, 0, 0, 0});
    fresh.resize(count);
    std::iota(fresh.begin(), fresh.end(), 0);
    for (size_t i = count; i > 1; i--)
        std::swap(fresh[i - 1], fresh[random_below(i)]);
    ready.clear();
    left = unsigned(count);
    if (shared_used) {
        memset(shared_bytes, 0xFF, shared_used);
        memset(shared_words, 0, (shared_used / 4 + 1) * sizeof *shared_words);
    }
    places.clear();
    shared_used = (shared_dynamic + 255) / 256 * 256;
    if (shared_used)
        memset(shared_bytes, 0xFF, shared_used);
    block_first = ++segment;
    while (left > 0) {
        if (!ready.empty() && (fresh.empty() || random_bits() % 2)) {
            size_t chosen = random_below(ready.size());
            int index = ready[chosen];
            ready[chosen] = ready.back();
            ready.pop_back();
            become(index);
            enter(strands[size_t(index)].fiber);
        } else if (!fresh.empty()) {
            enter(take_fiber());
        } else {
            release_barrier();
        }
    }
}

uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    return b ? greatest_divisor(b, a % b) : a;
}

/* Blocks in an order of their own. */
void run_kernel(const char *name, dim3 grid, dim3 block, size_t shared, struct call *what)
{
    opened open;
    uint64_t count = uint64_t(grid.x) * grid.y * grid.z, step, first = random_below(count);
    do
        step = 1 + random_below(count);
    while (greatest_divisor(step, count) != 1);
    active = &own_runner;
    active->shared_dynamic = shared;
    running = what;
    kernel_name = name;
    launch_first = ++segment;
    now.blocks = grid;
    now.threads = block;
    for (uint64_t i = 0, at = first; i < count; i++, at = (at + step) % count) {
        if (only_edges && at >= EDGE_BLOCKS && at < count - EDGE_BLOCKS)
            continue;
        now.block = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
        active->run_block();
    }
    kernel_name = nullptr;
    segment++;
}

} // namespace

unsigned lane()
{
    return unsigned(active->strand_now) % WARP;
}

namespace
{

/* `exact` moved by up to `most` units in the last place, as a hash of the argument says. */
template <typename T, typename B> T about(T exact, T argument, unsigned most)
{
    B bits, key;
    memcpy(&bits, &exact, sizeof bits);
    memcpy(&key, &argument, sizeof key);
    uint64_t mixed = (key + UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xBF58476D1CE4E5B9);
    int by = int((mixed >> 33) % (2 * most + 1)) - int(most);
    if (exact != exact || exact == 0 || isinf(exact))
        return exact;
    bits += B(by);
    memcpy(&exact, &bits, sizeof exact);
    return exact;
}

} // namespace

float exp_of(float x)
{
    return about<float, uint32_t>(float(exp(double(x))), x, 2);
}

float log_of(float x)
{
    return about<float, uint32_t>(float(::log(double(x))), x, 1);
}

double log_of(double x)
{
    return about<double, uint64_t>(::log(x), x, 1);
}

void barrier(const char *file, int line)
{
    strand &self = active->strands[size_t(active->strand_now)];
    self.is = AT_BARRIER;
    self.file = file;
    self.line = line;
    active->leave();
}

uint64_t exchange(uint32_t mask, uint64_t value, unsigned source, const char *file, int line)
{
    int index = active->strand_now;
    strand &self = active->strands[size_t(index)];
    self.is = IN_SHUFFLE;
    self.mask = mask;
    self.value = value;
    self.source = source;
    self.file = file;
    self.line = line;
    if (!(mask >> lane() & 1))
        violation("is in a shuffle without being named by its mask (%s:%d)", file, line);
    active->release_warp(unsigned(index) / WARP * WARP);
    active->leave();
    return self.received;
}

void *shared_memory(const void *key, size_t bytes, size_t alignment)
{
    auto [at, is_new] = active->places.try_emplace(key, 0);
    if (is_new) {
        at->second = (active->shared_used + alignment - 1) / alignment * alignment;
        active->shared_used = (at->second + bytes + 255) / 256 * 256; /* a gap, which is never written */
        if (active->shared_used - active->shared_dynamic > MOST_STATIC + 256 || active->shared_used > MOST_SHARED) {
            violation("the block takes more than its shared memory");
            abort();
        }
        memset(shared_bytes + at->second, 0xFF, active->shared_used - at->second);
    }
    return shared_bytes + at->second;
}

void *dynamic_shared_memory()
{
    return shared_bytes;
}

namespace
{

/* --- what a kernel touches --- */

enum access { READ, WRITE, ATOMIC };

/* A record: bytes of the word (4 bits), the thread (10), whether several threads (1) or blocks (1) read it or a write was atomic (1), bytes
 * that were ever written (4), the segment (43). */
struct record {
    uint64_t bits;
    static record make(unsigned bytes, unsigned thread)
    {
        return {bytes | uint64_t(thread) << 4 | segment << 21};
    }
    unsigned bytes() const
    {
        return bits & 15;
    }
    unsigned thread() const
    {
        return bits >> 4 & 1023;
    }
    uint64_t when() const
    {
        return bits >> 21;
    }
};
constexpr uint64_t MANY_THREADS = 1 << 14, MANY_BLOCKS = 1 << 15, WAS_ATOMIC = 1 << 16;

unsigned written_of(uint64_t write)
{
    return write >> 17 & 15;
}

std::set<const void *> told_of;

void tell(const void *at, const char *kind, const void *address, size_t bytes, const char *why)
{
    Dl_info where = {};
    char place[160];
    if (!told_of.insert(at).second) {
        broken = true;
        return;
    }
    dladdr(at, &where);
    auto block = memory.find(address);
    const char *low = static_cast<const char *>(address);
    if (low >= shared_bytes && low < shared_bytes + sizeof shared_bytes)
        snprintf(place, sizeof place, "shared memory");
    else if (block != memory.blocks.end())
        snprintf(place, sizeof place, "byte %td of %zu of device %d's memory", low - block->first, block->second.bytes,
                 block->second.device);
    else
        snprintf(place, sizeof place, "%p", address);
    violation("%s %zu bytes at %s: %s (addr2line -ife %s 0x%tx)", kind, bytes, place, why,
              where.dli_fname ? where.dli_fname : "?",
              static_cast<const char *>(at) - 1 - static_cast<char *>(where.dli_fbase));
}

const char *conflict(const word &held, unsigned bytes, access kind, unsigned self, bool shared)
{
    record write{held.write}, read{held.read};
    bool other = write.when() != segment || write.thread() != self;
    bool earlier_block = write.when() >= launch_first && write.when() < block_first;
    if ((write.bytes() & bytes) && !(kind == ATOMIC && (held.write & WAS_ATOMIC)) && other) {
        if (earlier_block && !shared)
            return "another block of this launch wrote it";
        if (write.when() == segment)
            return "another thread wrote it, and no barrier is between them";
    }
    if (kind == READ || !(read.bytes() & bytes))
        return nullptr;
    if (!shared && ((read.when() >= launch_first && read.when() < block_first) ||
                    (read.when() >= block_first && (held.read & MANY_BLOCKS))))
        return "another block of this launch read it";
    if (read.when() == segment && ((held.read & MANY_THREADS) || read.thread() != self))
        return "another thread read it, and no barrier is between them";
    return nullptr;
}

void note_read(word &held, unsigned bytes, unsigned self)
{
    record read{held.read}, mine = record::make(bytes, self);
    bool overlap = read.bytes() & bytes;
    uint64_t flags = 0;
    if (read.when() >= launch_first && overlap && (read.when() < block_first || (held.read & MANY_BLOCKS)))
        flags |= MANY_BLOCKS;
    if (read.when() == segment && read.thread() == self)
        mine.bits |= read.bytes() | (held.read & MANY_THREADS);
    else if (read.when() == segment && overlap)
        flags |= MANY_THREADS;
    held.read = mine.bits | flags;
}

void note_write(word &held, unsigned bytes, unsigned self, access kind)
{
    record write{held.write}, mine = record::make(bytes, self);
    if (write.when() == segment && write.thread() == self)
        mine.bits |= write.bytes();
    held.write = mine.bits | uint64_t(written_of(held.write) | bytes) << 17 | (kind == ATOMIC ? WAS_ATOMIC : 0);
}

/* What the program has loaded and nobody may write: constants of kernels. */
bool is_constant(const void *address)
{
    static std::map<const void *, bool> known;
    auto [at, is_new] = known.try_emplace(address, false);
    if (is_new) {
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[512], rights[8];
        uintptr_t from, to;
        while (maps && fgets(line, sizeof line, maps))
            if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && uintptr_t(address) >= from &&
                uintptr_t(address) < to)
                at->second = rights[0] == 'r' && rights[1] == '-' && strchr(line, '/');
        if (maps)
            fclose(maps);
    }
    return at->second;
}

void touch(const void *address, size_t bytes, access kind, const void *at)
{
    static const char *const names[] = {"reads", "writes", "changes"};
    if (!kernel_name || active->on_stack(address))
        return;
    const char *low = static_cast<const char *>(address);
    bool shared = low >= shared_bytes && low < shared_bytes + sizeof shared_bytes;
    word *words;
    size_t offset;
    if (shared) {
        offset = size_t(low - shared_bytes);
        words = shared_words;
        if (offset + bytes > active->shared_used)
            return tell(at, names[kind], address, bytes, "no variable of the block is there");
    } else if (memory.base && memory.has(low)) {
        static const char *first, *end; /* of the block that was touched last */
        if (!(low >= first && low + bytes <= end) || memory.blocks.find(first) == memory.blocks.end()) {
            auto block = memory.find(low);
            if (block == memory.blocks.end() || low + bytes > block->first + block->second.bytes) {
                tell(at, names[kind], address, bytes, "outside of what was allocated");
                return;
            }
            first = block->first;
            end = first + block->second.bytes;
        }
        offset = size_t(low - memory.base);
        words = memory.words;
    } else {
        const char *constants = reinterpret_cast<const char *>(running);
        bool is_own = low >= reinterpret_cast<char *>(&now) && low + bytes <= reinterpret_cast<char *>(&now + 1);
        if (!is_own && !(low >= constants && low + bytes <= constants + running->bytes) &&
            !(low >= reinterpret_cast<char *>(&running) && low < reinterpret_cast<char *>(&running + 1)) &&
            !(kind == READ && is_constant(low)))
            tell(at, names[kind], address, bytes, "this is memory of the host");
        return;
    }
    if (bytes <= 16 && offset % bytes)
        tell(at, names[kind], address, bytes, "misaligned");
    unsigned self = unsigned(active->strand_now);
    for (size_t i = offset / 4, last = (offset + bytes - 1) / 4; i <= last; i++) {
        size_t from = i * 4 < offset ? offset - i * 4 : 0, to = offset + bytes < i * 4 + 4 ? offset + bytes - i * 4 : 4;
        unsigned mask = ((1u << to) - 1) & ~((1u << from) - 1);
        const char *why = conflict(words[i], mask, kind, self, shared);
        if (!why && shared && kind != WRITE && (written_of(words[i].write) & mask) != mask)
            why = "nobody has written it";
        if (why)
            tell(at, names[kind], address, bytes, why);
        if (kind == READ)
            note_read(words[i], mask, self);
        else
            note_write(words[i], mask, self, kind);
    }
}

} // namespace

uint64_t atomic(void *address, size_t bytes, uint64_t operand, uint64_t (*change)(uint64_t, uint64_t))
{
    uint64_t held = 0, then;
    touch(address, bytes, ATOMIC, __builtin_return_address(0));
    memcpy(&held, address, bytes);
    then = change(held, operand);
    memcpy(address, &then, bytes);
    return held;
}

} // namespace cuda_on_cpu

/* --- streams, events --- */

struct mark {
    bool done = false;
    uint64_t ns = 0;
};

struct CUstream_st {
    int device;
    bool dead;
    unsigned number;
    std::deque<cuda_on_cpu::operation> operations;
};

struct CUevent_st {
    int device;
    bool timing;
    std::shared_ptr<mark> last; /* NULL: never recorded */
};

namespace cuda_on_cpu
{
namespace
{

std::vector<CUstream_st *> streams; /* also dead ones that still have something to do */
std::set<CUevent_st *> events;
std::map<const char *, size_t> pinned;
std::map<const char *, unsigned> pinned_users; /* operations that will use it */
thread_local cudaError_t last_error;
thread_local int device_now;

notifier notified;

} // namespace

uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000 + uint64_t(t.tv_nsec);
}

void note(int kind, const char *name, cudaStream_t stream, uint64_t start_ns, size_t bytes)
{
    if (notified)
        notified(kind, name, stream->number, start_ns, now_ns(), bytes);
}

namespace
{

cudaError_t fail(cudaError_t code)
{
    return last_error = code;
}

/* What every call begins with. */
cudaError_t begin()
{
    return broken ? fail(cudaErrorIllegalAddress) : cudaSuccess;
}

std::vector<int> visible_devices()
{
    std::vector<int> visible;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !text && i < real_devices; i++)
        visible.push_back(i);
    while (text && *text) {
        char *end;
        long one = strtol(text, &end, 10);
        if (end == text || one < 0 || one >= real_devices)
            break;
        visible.push_back(int(one));
        text = *end == ',' ? end + 1 : end;
    }
    return visible;
}

bool is_stream(cudaStream_t stream)
{
    return std::find(streams.begin(), streams.end(), stream) != streams.end() && !stream->dead;
}

/* Whether the first operation of a stream got done. */
bool advance(CUstream_st *stream)
{
    if (stream->operations.empty() || !stream->operations.front()())
        return false;
    stream->operations.pop_front();
    if (stream->dead && stream->operations.empty()) {
        streams.erase(std::find(streams.begin(), streams.end(), stream));
        delete stream;
    }
    return true;
}

bool advance_any()
{
    size_t count = streams.size(), first = count ? random_below(count) : 0;
    for (size_t i = 0; i < count; i++)
        if (advance(streams[(first + i) % count]))
            return true;
    return false;
}

void wait_until(const std::function<bool()> &reached, CUstream_st *wanted, const char *who)
{
    uint64_t start = now_ns();
    bool complained = false;
    while (!reached()) {
        {
            opened open; /* once for all that is done now: closing costs more than a small copy */
            while (!reached() && ((wanted && random_bits() % 2 && advance(wanted)) || advance_any()))
                continue;
        }
        if (reached())
            return;
        if (now_ns() - start > UINT64_C(20000000000) && !complained) {
            fprintf(stderr, "cuda_on_cpu: %s has waited for 20 s, maybe for ever\n", who);
            complained = true;
        }
        lock.unlock();
        usleep(50);
        lock.lock();
    }
}

bool all_idle()
{
    return std::all_of(streams.begin(), streams.end(), [](const CUstream_st *one) { return one->operations.empty(); });
}

std::map<const char *, size_t>::iterator pinned_at(const void *address, size_t bytes)
{
    const char *low = static_cast<const char *>(address);
    auto at = pinned.upper_bound(low);
    if (at == pinned.begin())
        return pinned.end();
    --at;
    return low + bytes <= at->first + at->second ? at : pinned.end();
}

struct rows {
    cudaStream_t stream;
    int kind; /* enum done */
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
};

void copy_rows(const rows &what)
{
    opened open;
    uint64_t start_ns = now_ns();
    for (size_t row = 0; row < what.height; row++)
        memmove(what.to + row * what.to_pitch, what.from + row * what.from_pitch, what.width);
    note(what.kind, "", what.stream, start_ns, what.width * what.height);
}

/* An end of a copy: of the device where it should be, and of the host where not. */
bool is_right_end(const void *address, size_t span, bool on_device, const char *which)
{
    if (on_device ? is_device_memory(address, span)
                  : !(memory.base && memory.has(address)) &&
                        !(memory.base && memory.has(static_cast<const char *>(address) + span - 1)))
        return true;
    fprintf(stderr, "cuda_on_cpu: a copy %s %zu bytes at %p, which are not %s memory\n", which, span, address,
            on_device ? "one piece of the device's" : "the host's");
    return false;
}

cudaError_t queue_copy(rows what, cudaMemcpyKind kind, cudaStream_t stream)
{
    what.stream = stream;
    what.kind = kind == cudaMemcpyHostToDevice ? TO_DEVICE : kind == cudaMemcpyDeviceToHost ? TO_HOST : INSIDE;
    if (what.width == 0 || what.height == 0)
        return cudaSuccess;
    size_t from_span = (what.height - 1) * what.from_pitch + what.width;
    size_t to_span = (what.height - 1) * what.to_pitch + what.width;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (!to_device && !from_device)
        return fail(cudaErrorInvalidMemcpyDirection);
    if (!is_right_end(what.to, to_span, to_device, "to") || !is_right_end(what.from, from_span, from_device, "from"))
        return fail(cudaErrorInvalidValue);
    if (kind == cudaMemcpyDeviceToDevice)
        return queue(stream, [what] { return copy_rows(what), true; });
    auto region = to_device ? pinned_at(what.from, from_span) : pinned_at(what.to, to_span);
    if (region != pinned.end()) {
        const char *key = region->first;
        pinned_users[key]++;
        return queue(stream, [what, key] {
            if (pinned.count(key)) {
                pinned_users[key]--;
                copy_rows(what);
            }
            return true;
        });
    }
    if (to_device) { /* pageable memory is read before the call returns */
        auto staged = std::make_shared<std::string>(what.from, from_span);
        return queue(stream, [what, staged] {
            rows late = what;
            late.from = staged->data();
            return copy_rows(late), true;
        });
    }
    cudaError_t code = queue(stream, [what] { return copy_rows(what), true; });
    wait_until([stream] { return stream->operations.empty(); }, stream, "a copy to pageable memory");
    return code;
}

} // namespace

cudaError_t queue(cudaStream_t stream, operation what)
{
    if (!is_stream(stream) || stream->device != device_now)
        return fail(cudaErrorInvalidResourceHandle);
    stream->operations.push_back(std::move(what));
    if (random_bits() % 4 == 0)
        advance_any();
    return cudaSuccess;
}

int device_of(cudaStream_t stream)
{
    return is_stream(stream) ? stream->device : -1;
}

void go_on()
{
    advance_any();
}

void submit(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::unique_ptr<call> what)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (begin() != cudaSuccess)
        return;
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (threads == 0 || threads > MOST_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > INT32_MAX || grid.y > UINT16_MAX || grid.z > UINT16_MAX || shared > MOST_SHARED) {
        fprintf(stderr, "cuda_on_cpu: %s<<<(%u,%u,%u), (%u,%u,%u), %zu>>> is no launch\n", name, grid.x, grid.y, grid.z,
                block.x, block.y, block.z, shared);
        (void)fail(cudaErrorInvalidConfiguration);
        return;
    }
    std::shared_ptr<call> kept = std::move(what);
    (void)queue(stream,
                [name, grid, block, shared, kept, stream] {
                    uint64_t start_ns = now_ns();
                    run_kernel(name, grid, block, shared, kept.get());
                    note(KERNEL, name, stream, start_ns, 0);
                    return true;
                });
}

namespace
{

/* What a program has not given back when it ends. */
struct last_words {
    ~last_words()
    {
        size_t alive = size_t(std::count_if(streams.begin(), streams.end(), [](auto *one) { return !one->dead; }));
        if (memory.blocks.size() + pinned.size() + events.size() + alive)
            fprintf(stderr,
                    "cuda_on_cpu: left behind: %zu pieces of device memory, %zu of pinned memory, %zu events, %zu "
                    "streams\n",
                    memory.blocks.size(), pinned.size(), events.size(), alive);
        if (told) {
            fprintf(stderr, "cuda_on_cpu: %u violations\n", told);
            fflush(nullptr);
            _exit(99);
        }
    }
} last_words;

} // namespace
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

#define ENTER                                                                                                          \
    std::lock_guard<std::recursive_mutex> guard(lock);                                                                 \
    if (begin() != cudaSuccess)                                                                                        \
    return last_error

extern "C" {

/* From now on. */
__attribute__((visibility("default"))) void cuda_on_cpu_tell(notifier whom)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    notified = whom;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = broken ? cudaErrorIllegalAddress : last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    return broken ? cudaErrorIllegalAddress : last_error;
}

const char *cudaGetErrorName(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    default:
        return "cudaError";
    }
}

const char *cudaGetErrorString(cudaError_t code)
{
    static thread_local char text[64];
    snprintf(text, sizeof text, "%s, number %d", broken ? "a violation, see above" : "of cuda_on_cpu", int(code));
    return text;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = int(setting("CUDA_ON_CPU_DRIVER", CUDART_VERSION));
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER;
    if (setting("CUDA_ON_CPU_DRIVER", CUDART_VERSION) < CUDART_VERSION)
        return fail(cudaErrorInsufficientDriver);
    *count = int(visible_devices().size());
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    ENTER;
    if (device < 0 || size_t(device) >= visible_devices().size())
        return fail(cudaErrorInvalidDevice);
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_now;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    ENTER;
    std::vector<int> visible = visible_devices();
    if (device < 0 || size_t(device) >= visible.size())
        return fail(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "CUDA on a CPU");
    /* Machines of a test are one: CUDA_ON_CPU_NODE_IN names the variable that has a node's number, of 16 devices at most. */
    const char *node = getenv("CUDA_ON_CPU_NODE_IN");
    properties->uuid.bytes[0] = char(visible[size_t(device)] + 1 + (node ? 16 * int(setting(node, 0)) : 0));
    properties->totalGlobalMem = memory_bytes;
    properties->major = 9;
    properties->multiProcessorCount = 1;
    properties->pciBusID = visible[size_t(device)];
    properties->pciDomainID = 0xFFFF;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER;
    wait_until(all_idle, nullptr, "cudaDeviceSynchronize");
    return begin();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER;
    *free_bytes = memory_bytes - memory.used;
    *total_bytes = memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **place, size_t bytes)
{
    ENTER;
    char *taken = bytes ? take(bytes, device_now) : nullptr;
    if (bytes && !taken)
        return fail(cudaErrorMemoryAllocation);
    *place = taken;
    return cudaSuccess;
}

/* For cufile.cpp, which finds it by name. */
__attribute__((visibility("default"))) bool cuda_on_cpu_move(void *to, const void *from, size_t bytes, bool from_device)
{
    opened open;
    bool is_there = is_device_memory(from_device ? from : to, bytes);
    if (is_there)
        memcpy(to, from, bytes);
    return is_there;
}

/* Waits for all that the device does, as CUDA's does. */
cudaError_t cudaFree(void *place)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!place)
        return begin();
    if (!memory.blocks.count(static_cast<char *>(place)))
        return fail(cudaErrorInvalidValue);
    wait_until(all_idle, nullptr, "cudaFree");
    give_back(static_cast<char *>(place));
    return begin();
}

cudaError_t cudaHostRegister(void *place, size_t bytes, unsigned)
{
    ENTER;
    char *low = static_cast<char *>(place);
    if (!bytes)
        return fail(cudaErrorInvalidValue);
    for (auto &[other, length] : pinned)
        if (low < other + length && other < low + bytes)
            return fail(cudaErrorHostMemoryAlreadyRegistered);
    pinned[low] = bytes;
    pinned_users[low] = 0;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *place)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    char *low = static_cast<char *>(place);
    if (!pinned.count(low))
        return fail(cudaErrorHostMemoryNotRegistered);
    if (pinned_users[low])
        violation("pinned memory at %p is given back, and %u copies that were queued would still use it", place,
                  pinned_users[low]);
    pinned.erase(low);
    pinned_users.erase(low);
    return begin();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaStream_t stream;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); /* as the default stream is to such */
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(to, from, bytes, kind, stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    return code;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER;
    return queue_copy({stream, 0, static_cast<char *>(to), static_cast<const char *>(from), bytes, bytes, bytes, 1}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER;
    if (to_pitch < width || from_pitch < width || to_pitch > INT32_MAX || from_pitch > INT32_MAX)
        return fail(cudaErrorInvalidPitchValue);
    return queue_copy({stream, 0, static_cast<char *>(to), static_cast<const char *>(from), to_pitch, from_pitch, width, height},
                      kind, stream);
}

cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream)
{
    ENTER;
    if (bytes && !is_device_memory(place, bytes))
        return fail(cudaErrorInvalidValue);
    return queue(stream, [place, value, bytes, stream] {
        opened open;
        uint64_t start_ns = now_ns();
        memset(place, value, bytes);
        note(SET, "", stream, start_ns, bytes);
        return true;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    ENTER;
    static unsigned numbers;
    *stream = new CUstream_st{device_now, false, ++numbers, {}};
    streams.push_back(*stream);
    return cudaSuccess;
}

/* Returns at once; what is queued is done later. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!is_stream(stream))
        return fail(cudaErrorInvalidResourceHandle);
    stream->dead = true;
    if (stream->operations.empty()) {
        streams.erase(std::find(streams.begin(), streams.end(), stream));
        delete stream;
    }
    return begin();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER;
    if (!is_stream(stream))
        return fail(cudaErrorInvalidResourceHandle);
    wait_until([stream] { return stream->operations.empty(); }, stream, "cudaStreamSynchronize");
    return begin();
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER;
    advance_any();
    if (!is_stream(stream))
        return fail(cudaErrorInvalidResourceHandle);
    return stream->operations.empty() ? begin() : fail(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    ENTER;
    if (!events.count(event))
        return fail(cudaErrorInvalidResourceHandle);
    std::shared_ptr<mark> awaited = event->last;
    return queue(stream, [awaited] { return !awaited || awaited->done; });
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    ENTER;
    *event = new CUevent_st{device_now, !(flags & cudaEventDisableTiming), nullptr};
    events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!events.erase(event))
        return fail(cudaErrorInvalidResourceHandle);
    delete event;
    return begin();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER;
    if (!events.count(event) || !is_stream(stream) || stream->device != event->device)
        return fail(cudaErrorInvalidResourceHandle);
    auto made = std::make_shared<mark>();
    event->last = made;
    return queue(stream, [made] {
        made->ns = now_ns();
        return made->done = true;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER;
    if (!events.count(event))
        return fail(cudaErrorInvalidResourceHandle);
    advance_any();
    if (begin() != cudaSuccess)
        return last_error;
    return !event->last || event->last->done ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER;
    if (!events.count(event))
        return fail(cudaErrorInvalidResourceHandle);
    std::shared_ptr<mark> awaited = event->last;
    wait_until([awaited] { return !awaited || awaited->done; }, nullptr, "cudaEventSynchronize");
    return begin();
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last)
{
    ENTER;
    if (!events.count(first) || !events.count(last) || !first->timing || !last->timing || !first->last || !last->last)
        return fail(cudaErrorInvalidResourceHandle);
    if (!first->last->done || !last->last->done)
        return fail(cudaErrorNotReady);
    *milliseconds = float(last->last->ns - first->last->ns) / 1e6f;
    return cudaSuccess;
}

/* --- what a compiler calls for every access of what it compiles with -fsanitize=thread --- */

#define AT __builtin_return_address(0)
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *address, size_t bytes)
{
    touch(address, bytes, READ, AT);
}
void __tsan_write_range(void *address, size_t bytes)
{
    touch(address, bytes, WRITE, AT);
}
#define ACCESSES(bytes)                                                                                                \
    void __tsan_read##bytes(void *address)                                                                             \
    {                                                                                                                  \
        touch(address, bytes, READ, AT);                                                                               \
    }                                                                                                                  \
    void __tsan_write##bytes(void *address)                                                                            \
    {                                                                                                                  \
        touch(address, bytes, WRITE, AT);                                                                              \
    }                                                                                                                  \
    void __tsan_unaligned_read##bytes(void *address)                                                                   \
    {                                                                                                                  \
        touch(address, bytes, READ, AT);                                                                               \
    }                                                                                                                  \
    void __tsan_unaligned_write##bytes(void *address)                                                                  \
    {                                                                                                                  \
        touch(address, bytes, WRITE, AT);                                                                              \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

} /* extern "C" */
