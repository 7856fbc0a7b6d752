/* Code that all backends share. */
#include "store/backend.h"

int backend_code_of_errno(int sys_errno)
{
    return cb_fail_errno(NULL, sys_errno, "%s", "");
}

int backend_pass_whole(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    const struct iovec *bytes = context;
    return put(to, bytes->iov_base, bytes->iov_len, err);
}

int backend_check(const char *name, const struct backend_ops *ops, struct cb_err *err)
{
    if (ops->version != BACKEND_VERSION)
        return cb_fail(err, CB_ERR_INTERNAL, "store backend '%s' has version %u of the interface, this program has %u",
                       name, ops->version, BACKEND_VERSION);
#define CHECK(operation)                                                                                               \
    if (!ops->operation)                                                                                               \
    return cb_fail(err, CB_ERR_INTERNAL, "store backend '%s' lacks the operation %s", name, #operation)
    CHECK(free);
    CHECK(describe);
    CHECK(register_memory);
    CHECK(create);
    CHECK(open_shared);
    CHECK(open_read);
    CHECK(close);
    CHECK(submit);
    CHECK(poll);
    CHECK(cancel);
    CHECK(publish);
    CHECK(swap);
    CHECK(sync_folder);
    CHECK(make_folder);
    CHECK(read_small);
    CHECK(stat);
    CHECK(modified);
    CHECK(list);
    CHECK(remove);
    CHECK(remove_folder);
    CHECK(free_bytes);
    CHECK(drop_cache);
#undef CHECK
    return 0;
}
