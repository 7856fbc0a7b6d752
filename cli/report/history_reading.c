/* Helpers of the verbs that read the history. */
#include "cli/report/history_reading.h"

#include <limits.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"

#define BLANKS " \t\n"

int open_history(struct cli *cli, struct history **history, struct cb_err *err)
{
    *history = cli->history;
    return *history ? 0 : history_open_read_only(NULL, history, err);
}

void close_history(struct cli *cli, struct history *history)
{
    if (history != cli->history)
        history_close(history);
}

const char *date_text(uint64_t wall_ns, char text[21])
{
    if (wall_ns == 0)
        return NULL;
    clock_format_utc(wall_ns, text);
    return text;
}

void json_member_date(struct json_writer *json, const char *key, uint64_t wall_ns)
{
    char text[21];
    json_member_text(json, key, date_text(wall_ns, text));
}

int for_each_run(struct history *history, const char *const *words, size_t count, run_info_fn take, void *context,
                 struct cb_err *err)
{
    struct run_selection selection = {0};
    int rc = history_select(history, words, count, &selection, err);
    for (size_t i = 0; rc == 0 && i < selection.count; i++) {
        struct run_info *info;
        rc = history_load_run(history, selection.runs[i], &info, err);
        if (rc)
            break;
        rc = take(context, info, err);
        run_info_free(info);
    }
    run_selection_release(&selection);
    return rc;
}

int read_records(const struct run_info *run, struct record *record, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = path_format(path, sizeof path, err, "%s/attempts/%u/records", run->folder, run->attempt);
    if (!rc)
        rc = record_read(path, record, err);
    return rc ? cb_context(err, "records of run %s", run->run) : 0;
}

int find_only_run(struct cli *cli, struct history *history, char run[64], struct cb_err *err)
{
    const char *word = cli->word_count ? cli->words[0] : "LATEST";
    if (cli->word_count > 1)
        return cb_fail(err, CB_ERR_USAGE, "%s takes one run, as `ckptbench %s LATEST`, not %zu", cli->verb->name,
                       cli->verb->name, cli->word_count);
    struct baseline baseline;
    int rc = history_find_run(history, word, run, err);
    if (rc == CB_ERR_NOT_FOUND && history_read_baseline(history, word, &baseline, NULL) == 0) {
        baseline_release(&baseline);
        rc =
            cb_fail(err, CB_ERR_USAGE,
                    "%s is a baseline, and %s takes one run: `ckptbench list %s` names its runs, `ckptbench compare %s "
                    "RUN` compares with it",
                    word, cli->verb->name, word, word);
    }
    return rc;
}

int split_words(const char *text, char ***words, size_t *count, struct cb_err *err)
{
    size_t len;
    int rc = 0;
    *words = NULL;
    *count = 0;
    for (text += strspn(text, BLANKS); *text && rc == 0; text += len + strspn(text + len, BLANKS)) {
        len = strcspn(text, BLANKS);
        rc = alloc_add_text(words, count, text, len, err);
    }
    return rc;
}
