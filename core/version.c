/* What this build is, as defined by the Makefile. */
#include "core/version.h"

const char *version_text(void)
{
    return CKPTBENCH_VERSION;
}

const char *version_commit(void)
{
    return CKPTBENCH_COMMIT;
}

const char *version_prefix(void)
{
    return CKPTBENCH_PREFIX;
}
