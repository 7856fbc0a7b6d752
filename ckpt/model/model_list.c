/* Parses models given as a YAML list: name, shape and dtype of each tensor and, if a layout must split it, layer,
 * tp_dim, tp_unit and expert. */
#include <string.h>

#include "ckpt/model/model_shape.h"
#include "core/alloc.h"
#include "core/buf.h"
#include "core/units.h"
#include "core/yaml.h"

#define LIST_MAX_BYTES (256u << 20)
#define LIST_MAX_ELEMENTS (UINT64_C(1) << 50)

struct list {
    struct model *model;
    const char *path;
    const struct model_choice *choice;
    size_t line; /* of the tensor being read */
    struct cb_err *err;
};

struct row {
    const char *name, *shape, *dtype, *layer, *tp_dim, *tp_unit, *expert;
};

static int read_row(const struct list *self, const char *const *keys, const char *const *values, size_t count,
                    struct row *row)
{
    const struct {
        const char *key;
        const char **field;
    } fields[] = {{"name", &row->name},     {"shape", &row->shape},     {"dtype", &row->dtype},  {"layer", &row->layer},
                  {"tp_dim", &row->tp_dim}, {"tp_unit", &row->tp_unit}, {"expert", &row->expert}};
    for (size_t i = 0; i < count; i++) {
        size_t f = 0;
        while (f < sizeof fields / sizeof *fields && strcmp(fields[f].key, keys[i]) != 0)
            f++;
        if (f == sizeof fields / sizeof *fields)
            return cb_fail(
                self->err, CB_ERR_USAGE,
                "%s:%zu: \"%s\" is not a key of a tensor: name, shape, dtype, layer, tp_dim, tp_unit, expert",
                self->path, self->line, keys[i]);
        *fields[f].field = values[i];
    }
    if (!row->name || !row->name[0] || !row->shape)
        return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: a tensor needs a name and a shape, as {name: w, shape: 4x6}",
                       self->path, self->line);
    return 0;
}

/* "4x6", "[4, 6]", "4 6"; "", "[]" and "scalar" are a scalar. */
static int read_shape(const struct list *self, const char *text, uint32_t *dims, uint64_t *shape)
{
    uint64_t elements = 1;
    *dims = 0;
    if (strcmp(text, "scalar") == 0)
        return 0;
    for (const char *at = text; *at;) {
        size_t len = strspn(at, "0123456789");
        if (len == 0) {
            if (!strchr("x[], ", *at))
                return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: shape \"%s\" is not sizes joined by x, as 4x6",
                               self->path, self->line, text);
            at++;
            continue;
        }
        uint64_t size = len > 18 ? 0 : strtoull(at, NULL, 10);
        if (*dims == CKPT_MAX_DIMS)
            return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: shape \"%s\" has more than %d dimensions", self->path,
                           self->line, text, CKPT_MAX_DIMS);
        if (size == 0 || size > LIST_MAX_ELEMENTS / elements)
            return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: shape \"%s\" is empty or has more than 2^50 elements",
                           self->path, self->line, text);
        elements *= size;
        shape[(*dims)++] = size;
        at += len;
    }
    return 0;
}

/* Leaves *value unchanged if there is no text. */
static int read_number(const struct list *self, const char *key, const char *text, uint64_t max, uint64_t *value)
{
    int code = text ? units_parse_u64(text, value, self->err) : 0;
    if (code)
        return cb_context(self->err, "%s:%zu: %s", self->path, self->line, key);
    if (text && *value > max)
        return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: %s is %s; it must be at most %llu", self->path, self->line,
                       key, text, (unsigned long long)max);
    return 0;
}

static int read_role(const struct list *self, const struct row *row, uint32_t dims, const uint64_t *shape,
                     struct tensor_role *role)
{
    uint64_t layer = 0, tp_dim = 0, unit = 1, expert = 0;
    bool first = !row->layer || strcmp(row->layer, "first") == 0, last = !first && strcmp(row->layer, "last") == 0;
    int code = read_number(self, "layer", first || last ? NULL : row->layer, 9999, &layer);
    if (!code)
        code = read_number(self, "tp_dim", row->tp_dim, dims ? dims - 1 : 0, &tp_dim);
    if (!code)
        code = read_number(self, "tp_unit", row->tp_unit, LIST_MAX_ELEMENTS, &unit);
    if (!code)
        code = read_number(self, "expert", row->expert, 99999, &expert);
    if (code)
        return code;
    if (row->tp_dim && dims == 0)
        return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: a scalar has no dimension to split: leave tp_dim out",
                       self->path, self->line);
    if (unit == 0 || (row->tp_dim && shape[tp_dim] % unit != 0))
        return cb_fail(self->err, CB_ERR_USAGE, "%s:%zu: tp_unit %s does not divide dimension %llu of %s", self->path,
                       self->line, row->tp_unit, (unsigned long long)tp_dim, row->shape);
    *role = (struct tensor_role){.layer = first  ? MODEL_LAYER_FIRST
                                          : last ? MODEL_LAYER_LAST
                                                 : (int32_t)layer,
                                 .tp_dim = row->tp_dim ? (int32_t)tp_dim : -1,
                                 .tp_unit = unit,
                                 .expert = row->expert ? (int32_t)expert : -1};
    return 0;
}

static int add_item(void *context, const char *const *keys, const char *const *values, size_t count, size_t line,
                    struct cb_err *err)
{
    struct list *self = context;
    struct row row = {0};
    struct tensor_role role;
    uint32_t dims;
    uint64_t shape[CKPT_MAX_DIMS];
    enum dtype dtype = DTYPE_BF16;
    self->line = line;
    int code = read_row(self, keys, values, count, &row);
    if (!code)
        code = read_shape(self, row.shape, &dims, shape);
    if (!code)
        code = read_role(self, &row, dims, shape, &role);
    if (code)
        return code;
    if (row.dtype && !dtype_find(row.dtype, &dtype))
        return cb_fail(err, CB_ERR_USAGE, "%s:%zu: dtype \"%s\" is not known: bf16, fp16, fp32, i64, …", self->path,
                       line, row.dtype);
    return model_add_chosen(self->model, self->choice, role, dtype, dims, shape, row.name, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct list *self, struct cb_err *err)
{
    const struct model *model = self->model;
    if (model->count == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s: the list has no tensors", self->path);
    const char **names = malloc(model->count * sizeof *names);
    if (!names)
        return alloc_fail(err, "for the names of model %s", self->path);
    for (size_t i = 0; i < model->count; i++)
        names[i] = model->tensors[i].fqn;
    qsort(names, model->count, sizeof *names, compare_names);
    int code = 0;
    for (size_t i = 1; i < model->count && !code; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            code = cb_fail(err, CB_ERR_USAGE, "%s: tensor \"%s\" is listed twice", self->path, names[i]);
    }
    free(names);
    return code;
}

int model_read_list(struct model *self, const char *path, const struct model_choice *choice, struct cb_err *err)
{
    struct list list = {.model = self, .path = path, .choice = choice, .err = err};
    struct buf text;
    buf_init(&text, LIST_MAX_BYTES);
    int code = buf_read_file(&text, path, err);
    if (!code)
        code = yaml_read_items(path, text.data, text.len, add_item, &list, err);
    if (!code)
        code = check_names(&list, err);
    buf_release(&text);
    return code;
}
