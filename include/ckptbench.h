/* libckptbench: saves and loads the distributed state of a training, as checkpoints that PyTorch's
 * torch.distributed.checkpoint (DCP) loads, and loads those that it wrote.
 *
 * How it is used: each process of the training is a rank. Every rank opens a handle, describes the part of the state
 * that it holds (tensors, regions of them in its memory, values), and all ranks save or load together:
 *
 *     struct ckptbench_error error;
 *     struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank = 0, .rank_count = 1};
 *     ckptbench *handle;
 *     if (ckptbench_open(&options, &handle, &error) ||
 *         ckptbench_save(handle, "/lustre/run/step-100", &state, NULL, &error))
 *         fprintf(stderr, "%s\n", error.text);
 *     ckptbench_close(handle, NULL);
 *
 * Errors: a function that can fail returns 0, or a negative enum ckptbench_code and fills *error, which may be NULL.
 * Outputs are left untouched by a failure unless noted. A save, load or close that passes sets error->code to 0 and
 * error->text to "", or, once per handle, to the reason why it is not recorded (see "record" below).
 *
 * Collective functions are called by all ranks, in the same order. If one fails on one rank, it fails on all of them,
 * with that rank's number and reason in the error of the others. Every wait for another rank ends after timeout.op at
 * the latest. After CKPTBENCH_TIMEOUT, and after another rank has died, a handle can only be closed; the error of a call
 * that finds it so ends with "; " CKPTBENCH_USELESS.
 *
 * Threads: different handles are independent. Calls on one handle may come from any thread, and wait for each other;
 * calls that are not collective and say so in their description ("any time") do not wait for a save or load in
 * progress. The library's own threads call nothing of the program but the functions of struct ckptbench_messages.
 *
 * The library never prints, never ends the process, and installs no signal handlers. It ignores nothing silently: what
 * it cannot do is an error. It opens sockets and files with close-on-exec. After a fork() the child must not use its
 * parent's handles; it may open its own. It does not keep the connections of its parent (a handler of pthread_atfork
 * closes them), so that other ranks notice at once when the parent ends.
 *
 * Memory: what is passed in is borrowed for the call, unless noted. Memory that the library returns belongs to the
 * object that the description names.
 *
 * GPUs: regions may be in the memory of a CUDA device, one for each handle, beside others in host memory. They are copied
 * to or from pinned host memory, after what the program had queued on the region's stream before the call; when a save
 * has copied them, or a load has filled them, the call returns. A load does not return before they are filled. This needs
 * the CUDA plugin of ckptbench (ckptbench-cuda.so in lib/ckptbench of its prefix, or named by CKPTBENCH_CUDA_PLUGIN). The
 * calling thread's current device may change.
 *
 * Versions: the symbols of this version are CKPTBENCH_1. A program is built with the header of the library with which it
 * runs. Structs that begin with `struct_bytes` tell if it was not: set it to sizeof. */
#ifndef CKPTBENCH_H
#define CKPTBENCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPTBENCH_API __attribute__((visibility("default")))

enum ckptbench_code {
    CKPTBENCH_OK = 0,
    CKPTBENCH_USAGE = -1,        /* the call, a key or the described state is invalid */
    CKPTBENCH_SYSTEM = -2,       /* the operating system or a library failed */
    CKPTBENCH_FORMAT = -3,       /* the checkpoint's metadata is malformed */
    CKPTBENCH_NOT_FOUND = -4,    /* there is no such checkpoint, or nothing of that name in it */
    CKPTBENCH_NO_SPACE = -5,     /* the store is full */
    CKPTBENCH_TIMEOUT = -6,      /* timeout.op has passed */
    CKPTBENCH_ABORTED = -7,      /* another rank failed; the text names it */
    CKPTBENCH_CORRUPT = -8,      /* what is stored is incomplete, damaged, or does not fit the described state */
    CKPTBENCH_MEMORY = -9,       /* memory is short, or a limit was reached */
    CKPTBENCH_UNSUPPORTED = -10, /* not supported by this build or machine */
    CKPTBENCH_EXISTS = -11,      /* the place holds a checkpoint already, or is being written by others */
    CKPTBENCH_INTERNAL = -12,    /* a bug of the library */
};

#define CKPTBENCH_USELESS "this handle can only be closed"

struct ckptbench_error {
    int code;        /* an enum ckptbench_code */
    char text[1024]; /* one line for people, ends with a zero byte */
};

/* The version of the library, as "1.0". Static. Any time. */
CKPTBENCH_API const char *ckptbench_version(void);

/* ----- element types ----- */

/* The number of an element type by its name in PyTorch ("bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"),
 * which is the same in every version; negative if there is no such type. Any time. */
CKPTBENCH_API int64_t ckptbench_dtype(const char *name);
/* The name of a number from ckptbench_dtype, and the bytes of one element. NULL and 0 for another number. Static. */
CKPTBENCH_API const char *ckptbench_dtype_name(int64_t dtype);
CKPTBENCH_API uint64_t ckptbench_dtype_bytes(int64_t dtype);

/* ----- how ranks meet ----- */

/* Ranks talk over TCP, encrypted, with a key that only they know. Rank 0 listens before it opens its handle, and the
 * program hands the text that results to the other ranks, by whatever way it has (torch's TCPStore, MPI, a file that
 * only its user can read). Anyone who has the text can join as a rank. Until it is passed to ckptbench_open, children that
 * are forked keep the listener, too, and may open it as rank 0: close their copies if the ranks shall notice that rank 0 has
 * ended before they met. */
#define CKPTBENCH_MEETING_BYTES 256

typedef struct ckptbench_listener ckptbench_listener;

/* Rank 0: opens a TCP port that the kernel chooses, and writes the text for the other ranks into `meeting`. `host`:
 * the name or address of this machine that they shall connect to; NULL takes the machine's own name. The listener goes
 * to ckptbench_open, or to ckptbench_listener_free. Not collective. */
CKPTBENCH_API int ckptbench_listen(const char *host, ckptbench_listener **listener,
                                   char meeting[CKPTBENCH_MEETING_BYTES], struct ckptbench_error *error);
/* For a listener that was not passed to ckptbench_open. Accepts NULL. */
CKPTBENCH_API void ckptbench_listener_free(ckptbench_listener *listener);

/* Instead, messages between ranks can be carried by functions of the program, for example over MPI. None of them waits.
 * Each returns 0, or another value if it failed, which the error then quotes.
 *
 * `send` and `receive` start a message of `length` bytes (at most 2^30), which stay valid until `test` has reported it as
 * done. *message is the program's; `test` gets it, until it is done. Messages from one rank to another with the same
 * tag match receives in the order in which both were started; tags are less than 2^18. A rank may send to itself.
 *
 * They are called during calls on the handle, and during an asynchronous save by a thread of the library; never two at a
 * time for one handle. So MPI must have been initialised with MPI_THREAD_MULTIPLE if the training uses it, too. Messages
 * of a handle must not meet the program's own, or those of another handle: a communicator of its own (MPI_Comm_dup) keeps
 * them apart. That another rank has died shows only when timeout.op has passed; then messages may remain that never
 * end, and their memory is never freed. */
struct ckptbench_messages {
    size_t struct_bytes; /* sizeof(struct ckptbench_messages) */
    void *context;       /* passed to the functions */
    int (*send)(void *context, const void *bytes, uint64_t length, uint32_t to, uint32_t tag, void **message);
    int (*receive)(void *context, void *bytes, uint64_t length, uint32_t from, uint32_t tag, void **message);
    int (*test)(void *context, void *message, int *done);
};

/* ----- handles ----- */

typedef struct ckptbench ckptbench;

struct ckptbench_open_options {
    size_t struct_bytes; /* sizeof(struct ckptbench_open_options) */
    uint32_t rank, rank_count;
    /* With several ranks. `listener` is rank 0's alone, and belongs to the library from here on, also after a failure;
     * the other ranks pass the text. */
    ckptbench_listener *listener;
    const char *meeting;
    /* "key=value", as ckptbench's own options (`ckptbench options`): format=dcp, checksum, copies, folder=overwrite (a
     * save replaces a checkpoint that is there), timeout.op, timeout.lease, every io.* and s3.*, save.dedup,
     * save.plan_cache, save.staging_bytes, load.exchange, load.gap and load.waste. Other keys are an error.
     *
     * "record=NAME" records each save and load of this handle, by rank, as an iteration of run NAME of ckptbench's home
     * (CKPTBENCH_HOME), or of the run folder NAME if it contains a slash; `ckptbench collect` takes it from there.
     * Without the word, the environment variable CKPTBENCH_RUN has the same meaning. Rank 0's counts. "label.KEY=VALUE"
     * are the run's labels. Handles whose rank 0 is the same process record together. Recording never fails a call. */
    const char *const *words;
    size_t word_count;
    /* Not 0: where ranks have different values under one name, the lowest rank's is stored, as PyTorch does, instead
     * of an error. */
    uint32_t allows_different_values;
    /* Not NULL: messages between ranks are carried by the program; `listener` and `meeting` are NULL then. The struct is
     * borrowed for the call; its functions and context are used until the handle is closed. */
    const struct ckptbench_messages *messages;
};

/* Opens a handle: connects the ranks. Collective if there are several: a rank whose words are wrong meets the others to
 * tell them. A rank that has ended is noticed by its connection, and a rank 0 that has ended by a port that refuses
 * connections for 5 s; one that never connected, at timeout.op. The handle belongs to the caller. */
CKPTBENCH_API int ckptbench_open(const struct ckptbench_open_options *options, ckptbench **handle,
                                 struct ckptbench_error *error);

/* Checks the words of a handle, and sets *seconds to their timeout.op: the longest that a collective call waits for another
 * rank. For programs whose ranks tell each other more than ckptbench_open does before they meet. Not collective; any
 * time. */
CKPTBENCH_API int ckptbench_timeout(const char *const *words, size_t word_count, double *seconds,
                                    struct ckptbench_error *error);

/* Waits for asynchronous saves, at most timeout.op, and closes the handle. Returns the failure of a save that no other
 * call has returned. The handle is gone whatever it returns. Every rank closes its handle, but no rank waits for
 * another one. Accepts NULL. */
CKPTBENCH_API int ckptbench_close(ckptbench *handle, struct ckptbench_error *error);

/* ----- the state ----- */

/* All members of these structs have 8 bytes, so that arrays of them can be filled as arrays of 64-bit numbers. */

#define CKPTBENCH_DIMS 8      /* room for the dimensions of a tensor … */
#define CKPTBENCH_MOST_DIMS 6 /* … of which this version supports so many */

/* A tensor of which this rank holds something. `fqn` is its name in the checkpoint. `path`: for nested dicts, the keys
 * that lead to it, as a Python tuple of strings and ints ("('model', 'layers', 0)"); NULL: the name alone. */
struct ckptbench_tensor {
    const char *fqn;
    const char *path;
    int64_t dtype; /* from ckptbench_dtype */
    uint64_t dims; /* 0: a scalar */
    uint64_t shape[CKPTBENCH_DIMS];
};

/* A box of a tensor in this rank's memory: elements [offset, offset + size) of each dimension. `address` is that of
 * its first element; `stride` the distances between neighbours along each dimension, in elements, as in PyTorch; they
 * may be in any order (a transposed tensor), but not negative. A box without elements needs no address. A rank may
 * hold several boxes of a tensor; they must not overlap. */
struct ckptbench_region {
    uint64_t tensor; /* index into the state's tensors */
    void *address;
    uint64_t offset[CKPTBENCH_DIMS];
    uint64_t size[CKPTBENCH_DIMS];
    uint64_t stride[CKPTBENCH_DIMS];
    uint64_t device; /* 0: host memory; N + 1: the memory of CUDA device N */
    void *stream;    /* of that device: the cudaStream_t that writes the elements; NULL: the default stream */
    uint64_t split[CKPTBENCH_DIMS]; /* by dimension: N + 1 if ranks divide it by split N of the state; 0: not known */
};

/* How ranks divide a dimension, which a program knows from its mesh and placements: into `pieces` (less than 2^32) steps of
 * size / pieces elements, rounded up, as torch.chunk does; steps at the end may be shorter or have none. Rank r holds step
 * index[r], and ranks with the same number hold the same. */
struct ckptbench_split {
    uint64_t pieces;
    const uint64_t *index; /* of every rank of the handle */
};

/* A value that is not a tensor. In a save `bytes` are what the checkpoint stores; PyTorch expects the output of
 * torch.save. In a load they are ignored. */
struct ckptbench_value {
    const char *fqn;
    const char *path; /* as of a tensor */
    const void *bytes;
    uint64_t length; /* in a save at least 1 */
};

/* What this rank holds. Names are unique, over tensors and values together.
 *
 * In a save the ranks' boxes of a tensor must make up the whole tensor. Ranks that hold equal boxes share the work of
 * writing them: each byte is written once, and loads are evenly divided among the holders. Boxes that overlap without
 * being equal are an error, and so are a name with different types, shapes or kinds on different ranks. A value that
 * several ranks have under one name must be the same on all of them, byte for byte, unless allows_different_values.
 * The plan that follows from all this is kept, and used again by later saves while names, types, shapes, boxes and the
 * lengths of values stay the same on every rank (addresses and strides may change): then the ranks exchange a few
 * bytes instead of tables. So they do in a first save, and in a load with load.exchange, if the state itself tells what
 * all ranks hold: each describes the same tensors, values and regions in the same order (where a rank's step of a split has
 * no elements, a region without elements), and every region is the whole tensor along each dimension that has no split. */
struct ckptbench_state {
    size_t struct_bytes; /* sizeof(struct ckptbench_state) */
    const struct ckptbench_tensor *tensors;
    size_t tensor_count;
    const struct ckptbench_region *regions;
    size_t region_count;
    const struct ckptbench_value *values;
    size_t value_count;
    const struct ckptbench_split *splits;
    size_t split_count;
};

/* ----- saving ----- */

/* What a save or load cost this rank. Seconds. */
struct ckptbench_result {
    size_t struct_bytes;   /* sizeof(struct ckptbench_result), set by the caller */
    double total_s;        /* from the call until all ranks have committed or loaded */
    double stall_s;        /* of that, the time in which the caller waited */
    double plan_s;         /* of the stall, describing and planning the state; not waiting for ranks that call later */
    double transfer_s;     /* writing, or reading */
    double wait_s;         /* waiting for other ranks */
    double durable_s;      /* until everything was durable; NaN with io.fsync=false, and for loads */
    uint64_t bytes;        /* of tensors, that this rank wrote or loaded */
    uint64_t moved_bytes;  /* to or from the store, by this rank */
    uint64_t plan_is_kept; /* 1 if the plan was that of an earlier save */
    uint64_t told_bytes;   /* of the state's description, that other ranks told this one to plan with */
};

/* Saves the state as checkpoint `path`: a folder ("/lustre/run/step-100"), "s3://BUCKET/PREFIX", or another kind of
 * store (docs/fault-store.md). Missing parent folders are made. Returns once the checkpoint is complete on all ranks
 * and durable; a checkpoint is complete when its file .metadata exists, which is written last. After a failure there
 * is no .metadata, but there may be files without it.
 *
 * CKPTBENCH_EXISTS if there is a complete checkpoint already, unless folder=overwrite: then it is removed first, and
 * while the new one is being written there is none. CKPTBENCH_EXISTS also while another program that uses this library
 * is saving to the same path; if that program has died, for at most timeout.lease.
 *
 * Waits for an asynchronous save that is in progress, and if that failed, returns its failure and saves nothing.
 * *result may be NULL. Collective. */
CKPTBENCH_API int ckptbench_save(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                                 struct ckptbench_result *result, struct ckptbench_error *error);

typedef struct ckptbench_async ckptbench_async;

/* Like ckptbench_save, but returns when the state has been copied to memory of the library and may change again. A
 * thread of the library does the rest; it needs no other call. *save belongs to the caller, who frees it with
 * ckptbench_async_free, before or after the save has ended; `save` may be NULL if it is of no interest. The memory for
 * the copy (the bytes that this rank writes) is kept until the handle is closed. Collective. */
CKPTBENCH_API int ckptbench_save_async(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                                       ckptbench_async **save, struct ckptbench_error *error);

/* Waits until the save has ended, at most `seconds` (negative: as long as it takes), and returns how it ended: 0 and
 * *result (may be NULL), or the failure, which no other call returns again. CKPTBENCH_TIMEOUT if it has not ended,
 * with *ended == 0; `ended` may be NULL. Not collective; any time, from any thread; may be repeated. */
CKPTBENCH_API int ckptbench_async_wait(ckptbench_async *save, double seconds, int *ended,
                                       struct ckptbench_result *result, struct ckptbench_error *error);
/* Does not end the save. Accepts NULL. Any time. */
CKPTBENCH_API void ckptbench_async_free(ckptbench_async *save);

/* ----- loading ----- */

/* Loads checkpoint `path` into the regions of the state, which may be laid out in any way: by other ranks, in other
 * boxes, only some of the tensors. It may be a checkpoint of this library or of PyTorch. A tensor that is not there,
 * or of another type or shape, is CKPTBENCH_CORRUPT, which names it; then the regions may have been overwritten in
 * part.
 *
 * The state's values are read, too: ckptbench_loaded_value returns them. A value that is not there is an error.
 *
 * With load.exchange=broadcast or split, ranks that need the same bytes read them once and exchange them; with off,
 * which is the default here, each rank reads what it needs. Waits for an asynchronous save in progress, as
 * ckptbench_save does. *result may be NULL. Collective. */
CKPTBENCH_API int ckptbench_load(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                                 struct ckptbench_result *result, struct ckptbench_error *error);

/* Value `index` of the state of the last ckptbench_load, as stored. *bytes belong to the handle and are valid until
 * its next load or its close. CKPTBENCH_USAGE if there is no such value. Not collective. */
CKPTBENCH_API int ckptbench_loaded_value(ckptbench *handle, size_t index, const void **bytes, uint64_t *length,
                                         struct ckptbench_error *error);

/* ----- looking ----- */

typedef struct ckptbench_checkpoint ckptbench_checkpoint;

/* What a checkpoint contains. Texts belong to the checkpoint. */
struct ckptbench_entry {
    size_t struct_bytes; /* sizeof(struct ckptbench_entry), set by the caller */
    const char *fqn;
    const char *path;  /* as in struct ckptbench_tensor; NULL: the name alone, or the checkpoint does not say */
    uint64_t is_value; /* 1: not a tensor; dtype, dims and shape mean nothing then */
    int64_t dtype;
    uint64_t dims;
    uint64_t shape[CKPTBENCH_DIMS];
    uint64_t bytes; /* of the tensor's elements, or of the stored value */
};

/* Reads a checkpoint's metadata, of whatever program. *checkpoint belongs to the caller, and may outlive the handle.
 * Not collective: for one rank. */
CKPTBENCH_API int ckptbench_inspect(ckptbench *handle, const char *path, ckptbench_checkpoint **checkpoint,
                                    struct ckptbench_error *error);
CKPTBENCH_API size_t ckptbench_checkpoint_count(const ckptbench_checkpoint *checkpoint);
/* Entry `index`, by name in ascending order. CKPTBENCH_USAGE if there is none. Any time. */
CKPTBENCH_API int ckptbench_checkpoint_entry(const ckptbench_checkpoint *checkpoint, size_t index,
                                             struct ckptbench_entry *entry, struct ckptbench_error *error);
/* Accepts NULL. */
CKPTBENCH_API void ckptbench_checkpoint_free(ckptbench_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
