/* Parses threshold rules and checks values against them. */
#include "run/thresholds.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"

#define WORD_BYTES 128

static int parse_value(const struct metric *metric, const char *text, double *value, struct cb_err *err)
{
    uint64_t whole = 0;
    int rc;
    if (strcmp(metric->unit, "s") == 0) {
        rc = units_parse_duration(text, &whole, err);
        *value = (double)whole / 1e9;
    } else if (strcmp(metric->unit, "bytes/s") == 0) {
        rc = units_parse_rate(text, &whole, err);
        *value = (double)whole;
    } else if (strcmp(metric->unit, "bytes") == 0) {
        rc = units_parse_bytes(text, &whole, err);
        *value = (double)whole;
    } else {
        rc = units_parse_double(text, value, err);
    }
    return rc;
}

static int parse_rule(const char *word, struct threshold *rule, struct cb_err *err)
{
    char name[WORD_BYTES];
    const char *colon = strchr(word, ':');
    if (!colon || colon == word || colon[1] == '\0')
        return cb_fail(err, CB_ERR_USAGE, "the rule %s is not METRIC:VALUE, as in storage_write_bytes_per_s:2GiB/s",
                       word);
    snprintf(name, sizeof name, "%.*s", (int)(colon - word), word);
    if (!metric_find(name, &rule->metric))
        return cb_fail(err, CB_ERR_USAGE, "the rule %s names no metric: docs/metrics.md has them all", word);
    int rc = parse_value(metric_row(rule->metric), colon + 1, &rule->bound, err);
    if (rc)
        cb_context(err, "the rule %s", word);
    return rc;
}

int thresholds_parse(const char *text, struct thresholds *rules, struct cb_err *err)
{
    struct thresholds fresh = {0};
    while (*text) {
        char word[WORD_BYTES];
        size_t len = strcspn(text, "+");
        if (len >= sizeof word || fresh.count == RULES_MOST)
            return cb_fail(err, CB_ERR_USAGE, "%s: a rule has at most %d characters, and there are at most %d of them",
                           text, WORD_BYTES - 1, RULES_MOST);
        snprintf(word, sizeof word, "%.*s", (int)len, text);
        int rc = parse_rule(word, &fresh.items[fresh.count], err);
        if (rc)
            return rc;
        fresh.count++;
        text += len + (text[len] == '+' ? 1 : 0);
    }
    *rules = fresh;
    return 0;
}

bool threshold_is_met(const struct threshold *rule, double value)
{
    if (isnan(value))
        return false;
    return metric_row(rule->metric)->direction == METRIC_LOWER_IS_BETTER ? value <= rule->bound : value >= rule->bound;
}
