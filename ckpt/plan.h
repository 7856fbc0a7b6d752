/* The save plan: which rank writes which region into which file, for all ranks at once. It holds what differs between
 * ranks, so that its size hardly depends on the number of FSDP shards.
 *
 * A pure function of layout and options, computed by each rank alone (no collective; ranks compare its digest). Every
 * element of every tensor is written exactly once (dedup none: once by every holder). `balanced`: state held by the
 * same ranks forms a line of bytes. Starting with the smallest groups of ranks, each line is cut among its ranks so
 * that the least loaded of them rise to one level. A cut is between two tensors if that is within 1/512 of the mean
 * load of the level, else between two rows; a small line goes to one rank. `lowest_rank` gives a region to the lowest
 * of its ranks. Under state=mlperf balanced is lowest_rank and files are MLPerf's: two per rank under ZeRO-3, else one
 * per rank for the optimizer and one per layer and tp rank.
 *
 * The bound is the least possible maximum: the largest mean load of any group of ranks (all; a stage; a stage and tp
 * rank; also with an ep or fsdp coordinate; a single rank), counting the bytes that only ranks of that group hold. So
 * stages of unequal size raise the bound, not the imbalance relative to it. */
#ifndef CKPT_PLAN_H
#define CKPT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "core/err.h"

enum dedup { DEDUP_BALANCED, DEDUP_LOWEST_RANK, DEDUP_NONE };
enum plan_format {
#define FORMAT(ID, row) PLAN_##ID,
#include "ckpt/format/formats.def"
#undef FORMAT
    PLAN_FORMATS
};
enum file_mode { FILES_PER_RANK, FILES_PER_ITEM, FILES_SHARED };

/* Folders of a rank's files in an object store, which distributes requests by the first characters of names. */
enum prefix_strategy { PREFIX_NONE, PREFIX_ROUND_ROBIN, PREFIX_BINARY, PREFIX_HEX };
#define PLAN_PREFIXES_BYTES 512

struct plan_options {
    enum dedup dedup;
    enum plan_format format;
    enum file_mode files;
    uint32_t files_per_rank; /* with FILES_PER_RANK */
    uint32_t fanout;         /* number of folders, 0 for none */
    enum prefix_strategy prefix;
    char prefixes[PLAN_PREFIXES_BYTES]; /* of round_robin: "a+b+c" */
    /* A power of two. With FILES_SHARED each rank's first item also starts at a multiple of it. */
    uint32_t payload_alignment; /* payloads start at multiples of this in the file: 4096 for O_DIRECT, else 64 */
};
#define PLAN_LEAST_ALIGNMENT 64 /* the default in every version of this program */

struct plan_item {
    uint32_t tensor;         /* state tensor */
    uint32_t file;           /* number of the file */
    uint64_t offset;         /* of the item in the file, its header first */
    uint64_t length;         /* header, payload, trailer */
    uint64_t payload_offset; /* of the payload in the file */
    uint64_t payload_bytes;
    struct region region;
    uint64_t row_step; /* see struct plan_pattern */
};

/* The items of `count` ranks, `rank` and every plan->rank_step'th after it. FSDP cuts tensors into shards of equally
 * many rows, so these ranks write the same items into files of their own, only from other rows: item k of the i-th rank
 * begins i * row_step rows after item k of the first. Other layouts have a pattern for each rank. Here the file of an
 * item is counted from the rank's first file, and its offset from the rank's first byte in it. */
struct plan_pattern {
    uint32_t rank, count;
    size_t first_item;   /* its items end where those of the next pattern begin */
    size_t first_length; /* so do the lengths of its files */
};

struct plan_rank {
    uint32_t pattern;
    uint32_t first_file;
    uint64_t first_byte; /* of its items in a shared file; else 0 */
};

struct plan {
    struct plan_options options; /* as requested */
    const char *suffix;          /* of files, and whether these have parts of tensors: see struct format_ops */
    bool has_parts;
    struct plan_item *items; /* of the patterns, each by file, then offset */
    struct plan_pattern *patterns;
    size_t pattern_count;    /* one more follows, which only ends the last */
    uint32_t rank_step;      /* see struct plan_pattern */
    uint64_t *lengths;       /* of the patterns' files */
    struct plan_rank *ranks; /* world_size + 1: the last one only ends the files */
    uint32_t world_size;
    size_t item_count, file_count;                              /* of all ranks */
    uint32_t most_files;                                        /* of one rank */
    uint64_t payload_bytes;                                     /* of all items */
    uint64_t rank_bytes_min, rank_bytes_median, rank_bytes_max; /* payload written by each rank */
    uint64_t bound_bytes;                                       /* lower bound of the maximum, see above */
    double imbalance;                                           /* max / mean */
    double imbalance_vs_bound;                                  /* max / bound */
    uint64_t compute_ns;
    uint64_t digest; /* of everything above except times */
};

int plan_compute(const struct layout *layout, const struct plan_options *options, struct plan **plan,
                 struct cb_err *err) CB_MUST_CHECK;
void plan_free(struct plan *plan);

/* The number of items of a rank, and each of them: by file, then offset. A rank beyond the layout has none. */
size_t plan_rank_items(const struct plan *plan, uint32_t rank);
struct plan_item plan_item_at(const struct plan *plan, uint32_t rank, size_t index);
/* All items of a rank, or of a file; free *items with free(). */
int plan_items_of_rank(const struct plan *plan, uint32_t rank, struct plan_item **items, size_t *count,
                       struct cb_err *err) CB_MUST_CHECK;
int plan_items_of_file(const struct plan *plan, uint32_t file, struct plan_item **items, size_t *count,
                       struct cb_err *err) CB_MUST_CHECK;

#define PLAN_NAME_BYTES (PLAN_PREFIXES_BYTES + 64)
void plan_file_name(const struct plan *plan, uint32_t file, char name[PLAN_NAME_BYTES]); /* "__0_0.distcp" */
uint64_t plan_file_length(const struct plan *plan, uint32_t file);
uint32_t plan_file_rank(const struct plan *plan, uint32_t file); /* the rank that creates it */

/* Everything that determines a plan: names, shapes, types, placements, mesh, the lengths of small objects, and the
 * options. Equal keys mean equal plans, since the key is a SHA-256 of these and the plan a pure function of them.
 * `number` is the key's first 64 bits, for comparing between ranks. */
struct plan_key {
    char hex[65];
    uint64_t number;
};
int plan_key_of(const struct layout *layout, const struct plan_options *options, struct plan_key *key,
                struct cb_err *err) CB_MUST_CHECK;
bool plan_key_equal(const struct plan_key *a, const struct plan_key *b);

#endif
