/* The mesh: made from a layout's options, and ranks as coordinates. */
#include "ckpt/layout/layout_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESH_MAX_RANKS (UINT64_C(1) << 24)

static const char *const role_names[AXIS_ROLES] = {"pp", "dp", "fsdp", "ep", "tp"};

/* Requested sizes, before they form a mesh. */
struct request {
    uint64_t size[AXIS_ROLES]; /* 0: not given */
    enum axis_role order[AXIS_ROLES];
    size_t count;
    uint64_t zero;
};

static int parse_axis(struct request *request, const char *text, size_t len, struct cb_err *err)
{
    const char *equals = memchr(text, '=', len);
    size_t name_len = equals ? (size_t)(equals - text) : len;
    size_t role = 0;
    while (role < AXIS_ROLES &&
           (strlen(role_names[role]) != name_len || strncmp(role_names[role], text, name_len) != 0))
        role++;
    if (role == AXIS_ROLES || !equals)
        return cb_fail(err, CB_ERR_USAGE,
                       "mesh: \"%.*s\" is not an axis with a size; axes are pp, dp, fsdp, tp, ep, "
                       "as in mesh=pp=2+dp=4+tp=8",
                       (int)len, text);
    if (request->size[role])
        return cb_fail(err, CB_ERR_USAGE, "mesh: axis %s is given twice", role_names[role]);
    size_t digits = strspn(equals + 1, "0123456789");
    uint64_t size = digits > 0 && digits < 9 && digits == len - name_len - 1 ? strtoull(equals + 1, NULL, 10) : 0;
    if (size == 0)
        return cb_fail(err, CB_ERR_USAGE, "mesh: the size of %s in \"%.*s\" must be a number from 1 to 99999999",
                       role_names[role], (int)len, text);
    request->size[role] = size;
    request->order[request->count++] = (enum axis_role)role;
    return 0;
}

/* mesh= excludes the shorthands, which could contradict it. */
static int request_mesh(struct request *request, const struct layout_options *options, struct cb_err *err)
{
    const struct {
        const char *name;
        uint64_t size, unset;
    } axes[] = {{"dp", options->dp, 0}, {"tp", options->tp, 1}, {"pp", options->pp, 1}, {"ep", options->ep, 1}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].size != axes[i].unset)
            return cb_fail(err, CB_ERR_USAGE, "mesh=%s and %s=%llu are both given; write the axes in mesh alone",
                           options->mesh, axes[i].name, (unsigned long long)axes[i].size);
    }
    if (strcmp(options->sharding, "none") != 0)
        return cb_fail(err, CB_ERR_USAGE, "mesh=%s and sharding=%s are both given; write the axes in mesh alone",
                       options->mesh, options->sharding);
    int code = 0;
    for (const char *at = options->mesh; !code && *at;) {
        size_t len = strcspn(at, "+");
        code = parse_axis(request, at, len, err);
        at += len;
        if (*at == '+' && at[1])
            at++;
        else if (*at == '+')
            return cb_fail(err, CB_ERR_USAGE, "mesh=%s ends with a +", options->mesh);
    }
    return code;
}

/* sharding=full|hybrid(n): number of dp ranks that shard together; 1 for sharding=none. */
static int read_sharding(const char *text, uint64_t dp, uint64_t ep, uint64_t *fsdp, struct cb_err *err)
{
    *fsdp = 1;
    if (strcmp(text, "none") == 0)
        return 0;
    uint64_t group = 0;
    size_t digits;
    if (strcmp(text, "full") == 0) {
        group = dp;
    } else if (strncmp(text, "hybrid(", 7) == 0) {
        digits = strspn(text + 7, "0123456789");
        if (digits > 0 && digits < 9 && strcmp(text + 7 + digits, ")") == 0)
            group = strtoull(text + 7, NULL, 10);
    }
    if (group == 0)
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s is not none, full or hybrid(n) with n from 1", text);
    if (dp % group != 0)
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s: groups of %llu do not divide dp=%llu", text,
                       (unsigned long long)group, (unsigned long long)dp);
    if (group % ep != 0)
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s: ep=%llu does not divide groups of %llu", text,
                       (unsigned long long)ep, (unsigned long long)group);
    *fsdp = group;
    return 0;
}

static int request_shorthands(struct request *request, const struct model *model, const struct layout_options *options,
                              bool published, struct cb_err *err)
{
    uint64_t dp = options->dp, tp = options->tp, pp = options->pp, ep = options->ep, ranks = options->ranks, fsdp;
    if (published && dp == 0 && tp == 1 && pp == 1 && request->zero == 0) {
        tp = model->mlperf_tp;
        pp = model->mlperf_pp;
        dp = ranks ? 0 : model->mlperf_dp;
        request->zero = model->mlperf_zero;
    }
    /* Without dp and ranks, dp is as large as expert parallelism requires. */
    if (dp == 0 && ranks % (tp * pp) != 0)
        return cb_fail(err, CB_ERR_USAGE, "ranks=%llu is not a multiple of tp x pp = %llu x %llu = %llu",
                       (unsigned long long)ranks, (unsigned long long)tp, (unsigned long long)pp,
                       (unsigned long long)(tp * pp));
    if (dp == 0)
        dp = ranks ? ranks / (tp * pp) : ep;
    if (dp % ep != 0)
        return cb_fail(err, CB_ERR_USAGE, "ep=%llu does not divide dp=%llu", (unsigned long long)ep,
                       (unsigned long long)dp);
    int code = read_sharding(options->sharding, dp, ep, &fsdp, err);
    if (code)
        return code;
    bool sharded = strcmp(options->sharding, "none") != 0;
    request->size[AXIS_PP] = pp;
    request->size[AXIS_DP] = sharded ? dp / fsdp : dp / ep;
    request->size[AXIS_FSDP] = sharded ? fsdp / ep : 1;
    request->size[AXIS_EP] = ep;
    request->size[AXIS_TP] = tp;
    static const enum axis_role order[] = {AXIS_PP, AXIS_DP, AXIS_FSDP, AXIS_EP, AXIS_TP};
    static const enum axis_role mlperf_order[] = {AXIS_DP, AXIS_FSDP, AXIS_EP, AXIS_PP, AXIS_TP};
    for (size_t i = 0; i < AXIS_ROLES; i++) {
        enum axis_role role = published ? mlperf_order[i] : order[i];
        if (request->size[role] > 1)
            request->order[request->count++] = role;
    }
    if (request->count == 0)
        request->order[request->count++] = AXIS_DP;
    return 0;
}

static int check_ranks(const struct request *request, uint64_t ranks, struct cb_err *err)
{
    uint64_t product = 1;
    char text[256] = "";
    size_t len = 0;
    for (size_t i = 0; i < request->count; i++) {
        product *= request->size[request->order[i]];
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s=%llu", i ? " x " : "",
                                role_names[request->order[i]], (unsigned long long)request->size[request->order[i]]);
        if (product > MESH_MAX_RANKS)
            return cb_fail(err, CB_ERR_USAGE, "%s: more than %llu ranks", text, (unsigned long long)MESH_MAX_RANKS);
    }
    if (ranks && ranks != product)
        return cb_fail(err, CB_ERR_USAGE, "ranks=%llu, but %s gives %llu", (unsigned long long)ranks, text,
                       (unsigned long long)product);
    return 0;
}

static int check_model(const struct request *request, const struct model *model, struct cb_err *err)
{
    uint64_t pp = request->size[AXIS_PP], tp = request->size[AXIS_TP], ep = request->size[AXIS_EP];
    if (pp > 1 && pp > model->layers)
        return cb_fail(err, CB_ERR_USAGE, "pp=%llu has more stages than the %u layers of %s", (unsigned long long)pp,
                       model->layers, model->name);
    if (model->heads && model->heads % tp != 0)
        return cb_fail(err, CB_ERR_USAGE, "tp=%llu does not divide the %u attention heads of %s",
                       (unsigned long long)tp, model->heads, model->name);
    if (model->kv_heads && model->kv_heads % tp != 0 && tp % model->kv_heads != 0)
        return cb_fail(err, CB_ERR_USAGE,
                       "tp=%llu neither divides the %u key-value heads of %s nor is a multiple of them",
                       (unsigned long long)tp, model->kv_heads, model->name);
    if (ep > 1 && model->experts == 0)
        return cb_fail(err, CB_ERR_USAGE, "ep=%llu needs a model with experts; %s has none", (unsigned long long)ep,
                       model->name);
    if (ep > 1 && model->experts % ep != 0)
        return cb_fail(err, CB_ERR_USAGE, "ep=%llu does not divide the %u experts of %s", (unsigned long long)ep,
                       model->experts, model->name);
    if (request->zero && request->size[AXIS_FSDP] > 1)
        return cb_fail(err, CB_ERR_USAGE, "zero=%llu and FSDP sharding both shard the same state; give one of them",
                       (unsigned long long)request->zero);
    return 0;
}

int mesh_read(struct mesh *self, const struct model *model, const struct layout_options *options, bool published,
              struct cb_err *err)
{
    struct request request = {.zero = options->zero};
    int code = *options->mesh ? request_mesh(&request, options, err)
                              : request_shorthands(&request, model, options, published, err);
    if (code)
        return code;
    for (size_t role = 0; role < AXIS_ROLES; role++) {
        if (request.size[role] == 0)
            request.size[role] = 1;
    }
    code = check_ranks(&request, options->ranks, err);
    if (!code)
        code = check_model(&request, model, err);
    if (code)
        return code;
    *self = (struct mesh){.count = request.count, .world_size = 1, .zero = (uint32_t)request.zero};
    for (size_t role = 0; role < AXIS_ROLES; role++)
        self->size[role] = 1;
    for (size_t i = request.count; i-- > 0;) {
        enum axis_role role = request.order[i];
        self->roles[i] = role;
        snprintf(self->axes[i].name, sizeof self->axes[i].name, "%s", role_names[role]);
        self->axes[i].size = (uint32_t)request.size[role];
        self->size[role] = self->axes[i].size;
        self->stride[role] = self->world_size;
        self->world_size *= self->axes[i].size;
    }
    return 0;
}

void mesh_coordinates(const struct mesh *self, uint32_t rank, uint32_t coordinate[AXIS_ROLES])
{
    assert(rank < self->world_size);
    for (size_t role = 0; role < AXIS_ROLES; role++)
        coordinate[role] = self->stride[role] ? rank / self->stride[role] % self->size[role] : 0;
}

uint32_t mesh_rank(const struct mesh *self, const uint32_t coordinate[AXIS_ROLES])
{
    uint32_t rank = 0;
    for (size_t role = 0; role < AXIS_ROLES; role++)
        rank += coordinate[role] * self->stride[role];
    return rank;
}

uint32_t mesh_index(const struct mesh *self, unsigned roles, const uint32_t coordinate[AXIS_ROLES])
{
    uint32_t index = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (roles & (1u << self->roles[i]))
            index = index * self->axes[i].size + coordinate[self->roles[i]];
    }
    return index;
}

void mesh_from_index(const struct mesh *self, unsigned roles, uint32_t index, uint32_t coordinate[AXIS_ROLES])
{
    for (size_t i = self->count; i-- > 0;) {
        if (roles & (1u << self->roles[i])) {
            coordinate[self->roles[i]] = index % self->axes[i].size;
            index /= self->axes[i].size;
        }
    }
    for (size_t role = 0; role < AXIS_ROLES; role++) {
        if ((roles & (1u << role)) && self->size[role] == 1)
            coordinate[role] = 0;
    }
}

uint32_t mesh_extent(const struct mesh *self, unsigned roles)
{
    uint32_t extent = 1;
    for (size_t role = 0; role < AXIS_ROLES; role++) {
        if (roles & (1u << role))
            extent *= self->size[role];
    }
    return extent;
}
