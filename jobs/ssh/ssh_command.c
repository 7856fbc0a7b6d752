/* Scripts for a remote shell, and parsing of the streams it returns. */
#include "jobs/ssh/ssh_command.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"

void ssh_mark_make(char mark[SSH_MARK_BYTES])
{
    unsigned char bytes[(SSH_MARK_BYTES - 1) / 2];
    random_bytes(bytes, sizeof bytes);
    hash_hex(bytes, sizeof bytes, mark);
}

/* In single quotes no shell interprets any of this: it has no line feed and no "!". */
void ssh_loader_format(size_t script_bytes, char line[SSH_LOADER_BYTES])
{
    int len = snprintf(line, SSH_LOADER_BYTES, "exec /bin/sh -c 'eval \"$(dd ibs=1 obs=65536 count=%zu 2>/dev/null)\"'",
                       script_bytes);
    assert(len > 0 && len < SSH_LOADER_BYTES);
    (void)len;
}

static void append_names(struct buf *script, const char *const *names, const char *suffix)
{
    for (size_t i = 0; names[i]; i++)
        buf_printf(script, "%s%s%s", i ? "|" : "", names[i], suffix);
}

/* The names come from the output of env. If a value contains a line of that form, the script unsets a variable that
 * does not exist, which is harmless. */
static void append_scrubbing(struct buf *script)
{
    buf_append_text(script, "for cb_v in $(env | sed -n 's/^\\([A-Z]*_[A-Za-z0-9_]*\\)=.*/\\1/p'); do case $cb_v in ");
    append_names(script, transport_slurm_kept, "");
    buf_append_text(script, ") ;; ");
    append_names(script, transport_slurm_prefixes, "*");
    buf_append_text(script, ") unset \"$cb_v\" ;; esac; done\n");
}

static void append_path(struct buf *script, const char *path, const char *login_path)
{
    bool has_path = path && *path, has_login = login_path && *login_path;
    if (!has_path && !has_login)
        return;
    buf_append_text(script, "PATH=");
    if (has_path) {
        buf_append_quoted(script, path);
        buf_append_char(script, ':');
    }
    if (has_login)
        buf_append_quoted(script, login_path);
    else
        buf_append_text(script, "\"$PATH\"");
    buf_append_text(script, "; export PATH\n");
}

static int append_environment(struct buf *script, const char *const *environment, struct cb_err *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    for (size_t i = 0; environment && environment[i]; i++) {
        const char *variable = environment[i];
        size_t len = strcspn(variable, "=");
        if (len == 0 || variable[len] != '=' || strspn(variable, letters) != len ||
            (*variable >= '0' && *variable <= '9'))
            return cb_fail(err, CB_ERR_USAGE, "\"%.*s\" cannot be the name of a variable", (int)(len < 64 ? len : 64),
                           variable);
        buf_append_text(script, " export ");
        buf_append(script, variable, len + 1);
        buf_append_quoted(script, variable + len + 1);
        buf_append_char(script, ';');
    }
    return 0;
}

int ssh_script_append(struct buf *script, const struct transport_command *command, const char *mark, const char *path,
                      const char *login_path, struct cb_err *err)
{
    buf_append_text(script, "{\n");
    if (command->without_slurm)
        append_scrubbing(script);
    append_path(script, path, login_path);
    /* The process group ends the command at its time-out. The shell's own messages are discarded. If nobody reads the
     * marks any more, the command is too late and does not start. */
    buf_printf(script,
               "cb_g=; read -r cb_a cb_b cb_c cb_d cb_g cb_e 2>/dev/null </proc/$$/stat\n"
               "exec 3>&2 2>/dev/null\n"
               "printf '%%s %%s\\n' %s-begin \"${cb_g:-$$}\" || exit; printf '%%s \\n' %s-begin >&3 || exit\n"
               "if command -v ",
               mark, mark);
    buf_append_quoted(script, command->argv[0]);
    buf_append_text(script, " >/dev/null; then\n(");
    int rc = append_environment(script, command->environment, err);
    if (rc)
        return rc;
    buf_append_text(script, " exec 2>&3 3>&-; exec");
    for (size_t i = 0; command->argv[i]; i++) {
        buf_append_char(script, ' ');
        buf_append_quoted(script, command->argv[i]);
    }
    buf_printf(script,
               " )\ncb_s=$?\nelse cb_s=missing; fi\n"
               "printf '\\n%%s %%s\\n' %s-end \"$cb_s\"; printf '\\n%%s \\n' %s-end >&3\n}",
               mark, mark);
    return buf_check(script, "a command for the far side", err);
}

void ssh_stream_init(struct ssh_stream *self, const char *mark, size_t max_bytes)
{
    *self = (struct ssh_stream){.mark = mark};
    buf_init(&self->text, max_bytes + SSH_NOISE_MAX_BYTES);
}

void ssh_stream_release(struct ssh_stream *self)
{
    buf_release(&self->text);
}

/* Finds a complete "MARK-WORD TEXT\n" in the buffered bytes from `from` on: its start, its text, its end. */
static bool find_line(const struct ssh_stream *self, size_t from, const char *word, size_t *start, size_t *after,
                      char text[32])
{
    char wanted[SSH_MARK_BYTES + 8];
    size_t len = (size_t)snprintf(wanted, sizeof wanted, "%s%s ", self->mark, word);
    const char *found = memmem(self->text.data + from, self->text.len - from, wanted, len);
    if (!found)
        return false;
    const char *value = found + len, *end = self->text.data + self->text.len;
    const char *line_end = memchr(value, '\n', (size_t)(end - value));
    if (!line_end)
        return false;
    snprintf(text, 32, "%.*s", line_end - value < 31 ? (int)(line_end - value) : 31, value);
    *start = (size_t)(found - self->text.data);
    *after = (size_t)(line_end + 1 - self->text.data);
    return true;
}

static void cut_front(struct buf *text, size_t bytes)
{
    memmove(text->data, text->data + bytes, text->len - bytes);
    text->len -= bytes;
    text->data[text->len] = '\0';
}

void ssh_stream_take(struct ssh_stream *self, const char *bytes, size_t len)
{
    const size_t longest_line = SSH_MARK_BYTES + 48;
    size_t start, after;
    if (self->ended || self->too_much)
        return;
    size_t from = self->text.len > longest_line ? self->text.len - longest_line : 0;
    buf_append(&self->text, bytes, len);
    if (self->text.code) {
        self->too_much = true;
        return;
    }
    if (!self->begun) {
        if (!find_line(self, from, "-begin", &start, &after, self->first)) {
            self->too_much = self->text.len > SSH_NOISE_MAX_BYTES;
            return;
        }
        self->begun = true;
        cut_front(&self->text, after);
        from = 0;
    }
    if (find_line(self, from, "-end", &start, &after, self->last)) {
        self->ended = true;
        self->text.len = start ? start - 1 : 0; /* the preceding line feed belongs to the mark */
        self->text.data[self->text.len] = '\0';
    }
}
