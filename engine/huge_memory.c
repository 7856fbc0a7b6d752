/* Mappings aligned to huge pages. The caller unmaps them. */
#include "engine/huge_memory.h"

#include <string.h>
#include <sys/mman.h>

#include "core/units.h"

#define HUGE_PAGE_BYTES (UINT64_C(2) * 1024 * 1024)

static uint64_t round_to_huge(uint64_t bytes)
{
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

int huge_memory_map(uint64_t bytes, void **memory, struct cb_err *err)
{
    char text[32];
    /* Maps one huge page more than needed and unmaps the excess. */
    uint64_t wanted = round_to_huge(bytes), mapped = wanted + HUGE_PAGE_BYTES;
    char *place = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return cb_fail(err, CB_ERR_MEMORY, "no %s of memory", units_format_bytes((double)bytes, text));
    char *start = (char *)round_to_huge((uintptr_t)place);
    if (start > place)
        munmap(place, (size_t)(start - place));
    if (start + wanted < place + mapped)
        munmap(start + wanted, HUGE_PAGE_BYTES - (size_t)(start - place));
    (void)madvise(start, wanted, MADV_HUGEPAGE); /* only a hint */
    /* A child that a training forks (to read its data) needs none of it, and would make us copy each page again. */
    (void)madvise(start, wanted, MADV_DONTFORK);
    memset(start, 0, wanted);
    *memory = start;
    return 0;
}

void huge_memory_unmap(void *memory, uint64_t bytes)
{
    if (memory)
        munmap(memory, round_to_huge(bytes));
}
