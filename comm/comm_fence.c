/* A barrier outside of MPI, right after MPI has started.
 *
 * MPI_Init of Open MPI ends with a PMIx fence that collects no data. Under srun (Slurm 22.05 with PMIx 4) such a fence
 * does not wait. A rank that is ready then sends to a rank that is still inside an earlier fence and has no handler for
 * messages yet: that rank jumps to a null pointer. A fence that collects data does wait, so we add one, through the
 * libpmix that MPI has loaded. */
#include "comm/comm_fence.h"

#ifdef HAVE_PMIX

#include <dlfcn.h>
#include <pmix.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY "libpmix.so.2"

typedef pmix_status_t (*fence_fn)(const pmix_proc_t processes[], size_t process_count, const pmix_info_t info[],
                                  size_t info_count);

static bool is_of_srun(void)
{
    return getenv("PMIX_RANK") && getenv("SLURM_PROCID") && !getenv("OMPI_COMM_WORLD_RANK");
}

static int fence(fence_fn call, struct cb_err *err)
{
    pmix_info_t info = {.value = {.type = PMIX_BOOL, .data = {.flag = true}}};
    snprintf(info.key, sizeof info.key, "%s", PMIX_COLLECT_DATA);
    pmix_status_t status = call(NULL, 0, &info, 1); /* all ranks of this job */
    return status == PMIX_SUCCESS
               ? 0
               : cb_fail(err, CB_ERR_SYSTEM, "ranks did not find together: PMIx_Fence: %d", (int)status);
}

int comm_fence_wait(struct cb_err *err)
{
    union {
        void *found;
        fence_fn call;
    } symbol = {NULL};
    void *library = is_of_srun() ? dlopen(LIBRARY, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library)
        symbol.found = dlsym(library, "PMIx_Fence");
    int rc = symbol.found ? fence(symbol.call, err) : 0;
    if (library)
        dlclose(library);
    return rc;
}

#else

int comm_fence_wait(struct cb_err *err)
{
    (void)err;
    return 0;
}

#endif
