/* Helpers of the verbs that read the history: dates, and the run that is named. */
#ifndef CLI_REPORT_HISTORY_READING_H
#define CLI_REPORT_HISTORY_READING_H

#include "cli/cli.h"
#include "cli/report/metric_format.h"
#include "core/json.h"
#include "db/history.h"
#include "run/record.h"

/* The history that was lent to the verb, or else the home's, read-only. */
int open_history(struct cli *cli, struct history **history, struct cb_err *err) CB_MUST_CHECK;
void close_history(struct cli *cli, struct history *history);

/* The UTC date "2026-11-21T12:00:00Z"; NULL for 0. */
const char *date_text(uint64_t wall_ns, char text[21]);

/* The same as a member of a JSON object, null for 0. */
void json_member_date(struct json_writer *json, const char *key, uint64_t wall_ns);

/* Loads the runs that the words select, newest first, and calls `take` for each until it fails. `take` sets members of
 * `info` to NULL if it takes ownership of them. */
typedef int (*run_info_fn)(void *context, struct run_info *info, struct cb_err *err);
int for_each_run(struct history *history, const char *const *words, size_t count, run_info_fn take, void *context,
                 struct cb_err *err) CB_MUST_CHECK;

/* Reads what the ranks of its last attempt recorded, from the run's folder; release it with record_release.
 * CB_ERR_NOT_FOUND if no rank left any. */
int read_records(const struct run_info *run, struct record *record, struct cb_err *err) CB_MUST_CHECK;

/* The run named by the verb's only word; without a word, LATEST. CB_ERR_USAGE if there are more words. */
int find_only_run(struct cli *cli, struct history *history, char run[64], struct cb_err *err) CB_MUST_CHECK;

/* The words of filters that were given in quotes, as "model=gpt2 since=30d". Free with alloc_free_texts, also after a
 * failure. */
int split_words(const char *text, char ***words, size_t *count, struct cb_err *err) CB_MUST_CHECK;

#endif
