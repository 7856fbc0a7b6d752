/* Checks host keys and presents the user's keys. Never prompts: if a person must act (unknown host, passphrase), it
 * fails and the message explains how. */
#ifdef HAVE_SSH2

#include "jobs/ssh/ssh_login.h"

#include <errno.h>
#include <libssh2.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/hash.h"
#include "jobs/ssh/ssh_agent.h"
#include "jobs/ssh/ssh_key.h"
#include "jobs/ssh/ssh_known_hosts.h"

#define KNOWN_HOSTS_MAX_BYTES (16u << 20)
#define AGENT_BOUND_NS (20 * NS_PER_S)
#define NOTES_BYTES 512

/* Results over all files; positions of bad entries are FILE:LINE. */
struct verdict {
    struct ssh_known known;
    char differs_place[SSH_PLACE_BYTES], revoked_place[SSH_PLACE_BYTES];
};

static int scan_file(struct verdict *self, const char *path, const char *name, const void *blob, size_t len,
                     struct cb_err *err)
{
    struct buf text;
    if (strcmp(path, "none") == 0 || access(path, F_OK) < 0)
        return 0;
    buf_init(&text, KNOWN_HOSTS_MAX_BYTES);
    int rc = buf_read_file(&text, path, err); /* an existing file that cannot be read may contain a revocation */
    struct ssh_known before = self->known;
    if (rc == 0)
        ssh_known_scan(&self->known, text.data, text.len, name, blob, len);
    if (self->known.differs && !before.differs)
        snprintf(self->differs_place, SSH_PLACE_BYTES, "%s:%u", path, self->known.differs_line);
    if (self->known.revoked && !before.revoked)
        snprintf(self->revoked_place, SSH_PLACE_BYTES, "%s:%u", path, self->known.revoked_line);
    buf_release(&text);
    return rc;
}

static int scan_files(struct verdict *self, const struct ssh_host *host, const char *name, const void *blob, size_t len,
                      struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < host->user_known_hosts.count; i++)
        rc = scan_file(self, host->user_known_hosts.items[i], name, blob, len, err);
    for (size_t i = 0; rc == 0 && i < host->global_known_hosts.count; i++)
        rc = scan_file(self, host->global_known_hosts.items[i], name, blob, len, err);
    return rc;
}

/* A host on another port than 22 may be listed by its bare name, as for ssh; but such an entry cannot reject it,
 * since another server may own the name. */
static int judge(struct verdict *self, const struct ssh_host *host, const void *blob, size_t len, struct cb_err *err)
{
    char name[SSH_HOST_BYTES + 16];
    *self = (struct verdict){0};
    ssh_host_known_name(host, name);
    int rc = scan_files(self, host, name, blob, len, err);
    if (rc || self->known.kinds || *host->host_key_alias || host->port == 22)
        return rc;
    struct ssh_host bare = {.port = 22};
    struct verdict other = {0};
    snprintf(bare.host_name, sizeof bare.host_name, "%s", host->host_name);
    ssh_host_known_name(&bare, name);
    rc = scan_files(&other, host, name, blob, len, err);
    if (rc == 0 && (other.known.matches || other.known.revoked || !blob)) {
        *self = other;
        self->known.differs = false;
    }
    return rc;
}

static bool has_algorithm(const char *const *supported, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(supported[i], name) == 0)
            return true;
    return false;
}

int ssh_login_prefer_known(LIBSSH2_SESSION *handle, const struct ssh_host *host, struct cb_err *err)
{
    static const struct {
        enum ssh_key_kind kind;
        const char *algorithm;
    } order[] = {{SSH_KEY_ED25519, "ssh-ed25519"},
                 {SSH_KEY_ECDSA_256, "ecdsa-sha2-nistp256"},
                 {SSH_KEY_ECDSA_384, "ecdsa-sha2-nistp384"},
                 {SSH_KEY_ECDSA_521, "ecdsa-sha2-nistp521"},
                 {SSH_KEY_RSA, "rsa-sha2-512"},
                 {SSH_KEY_RSA, "rsa-sha2-256"},
                 {SSH_KEY_RSA, "ssh-rsa"}};
    char names[256] = "";
    size_t used = 0;
    const char **supported = NULL;
    struct verdict verdict;
    int rc = judge(&verdict, host, NULL, 0, err);
    if (rc)
        return rc;
    /* Requests only kinds that the library supports: libssh2 1.10 removes others from the list by an overlapping
     * memcpy. */
    int count = libssh2_session_supported_algs(handle, LIBSSH2_METHOD_HOSTKEY, &supported);
    for (int known = 1; count > 0 && known >= 0; known--)
        for (size_t i = 0; i < sizeof order / sizeof *order; i++)
            if (!!(verdict.known.kinds & 1u << order[i].kind) == known &&
                has_algorithm(supported, count, order[i].algorithm))
                used +=
                    (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? "," : "", order[i].algorithm);
    if (supported)
        libssh2_free(handle, supported);
    if (used == 0 || libssh2_session_method_pref(handle, LIBSSH2_METHOD_HOSTKEY, names))
        return cb_fail(err, CB_ERR_UNSUPPORTED, "this libssh2 (%s) has no kind of host key that ckptbench knows",
                       libssh2_version(0));
    return 0;
}

/* Fails; the message explains how to add the host to known_hosts. */
static int refuse_stranger(const struct ssh_host *host, bool direct, const struct verdict *verdict,
                           enum ssh_key_kind kind, const char *fingerprint, struct cb_err *err)
{
    char how[SSH_HOST_BYTES + SSH_PLACE_BYTES];
    const char *file = host->user_known_hosts.count ? host->user_known_hosts.items[0] : "known_hosts";
    const char *type = kind == SSH_KEY_ED25519 ? "ed25519" : kind == SSH_KEY_RSA ? "rsa" : "ecdsa";
    if (direct && !*host->host_key_alias)
        snprintf(how, sizeof how, "ssh-keyscan -t %s -p %u %s >> %s", type, host->port, host->host_name,
                 host->user_known_hosts.count ? file : "~/.ssh/known_hosts");
    else
        snprintf(how, sizeof how, "ssh %s true", host->alias);
    return cb_fail(err, CB_ERR_USAGE,
                   "the host key of %s (port %u) is not known: %s %s is not in %s%s. Compare it with what the "
                   "administrators of %s publish; if it is the same, add it with: %s",
                   host->host_name, host->port, ssh_key_kind_title(kind), fingerprint, file,
                   verdict->known.kinds ? ", which has only keys of other kinds for it" : "", host->alias, how);
}

static int refuse_changed(const struct ssh_host *host, const struct verdict *verdict, enum ssh_key_kind kind,
                          const char *fingerprint, struct cb_err *err)
{
    char name[SSH_HOST_BYTES + 16], file[SSH_PLACE_BYTES];
    ssh_host_known_name(host, name);
    snprintf(file, sizeof file, "%s", verdict->differs_place);
    *strrchr(file, ':') = '\0';
    return cb_fail(
        err, CB_ERR_CORRUPT,
        "REFUSED: THE HOST KEY OF %s HAS CHANGED. %s says it is %s; what answers at port %u has %s %s. Either "
        "its administrators gave it a new key, or somebody is between you and it. Nothing was sent. Ask "
        "them; if it is new, remove the old one with: ssh-keygen -R '%s' -f %s",
        host->host_name, verdict->differs_place, verdict->known.known_fingerprint, host->port, ssh_key_kind_title(kind),
        fingerprint, name, file);
}

int ssh_login_check_host(LIBSSH2_SESSION *handle, const struct ssh_host *host, bool direct, struct cb_err *err)
{
    char fingerprint[SSH_FINGERPRINT_BYTES];
    struct verdict verdict;
    size_t len = 0;
    int type = 0;
    const char *blob = libssh2_session_hostkey(handle, &len, &type);
    if (!blob || len == 0)
        return cb_fail(err, CB_ERR_SYSTEM, "%s showed no host key", host->alias);
    enum ssh_key_kind kind = ssh_key_kind_of_blob(blob, len);
    int rc = judge(&verdict, host, blob, len, err);
    if (rc)
        return rc;
    ssh_fingerprint(blob, len, fingerprint);
    if (verdict.known.revoked)
        return cb_fail(err, CB_ERR_CORRUPT, "REFUSED: the host key of %s (%s) is revoked at %s", host->host_name,
                       fingerprint, verdict.revoked_place);
    if (verdict.known.matches)
        return 0;
    return verdict.known.differs ? refuse_changed(host, &verdict, kind, fingerprint, err)
                                 : refuse_stranger(host, direct, &verdict, kind, fingerprint, err);
}

/* One attempt to log in. */
struct login {
    struct ssh_session *session;
    LIBSSH2_SESSION *handle;
    const struct ssh_host *host;
    uint64_t deadline_ns;
    struct ssh_agent agent;
    const struct ssh_agent_key *signing; /* the key that the agent is asked to sign with */
    struct cb_err sign_err;
    unsigned refused;   /* keys that the server rejected */
    struct buf notes;   /* why other keys were not tried; truncated for messages */
    struct ssh_key key; /* the current key */
    char usual[3][PATH_MAX];
};

static void note(struct login *self, const char *format, ...) CB_PRINTF(2, 3);
static void note(struct login *self, const char *format, ...)
{
    va_list arguments;
    if (self->notes.len)
        buf_append_text(&self->notes, "; ");
    va_start(arguments, format);
    buf_vprintf(&self->notes, format, arguments);
    va_end(arguments);
}

/* Called by libssh2 when the server would accept the key. */
static int sign_by_agent(LIBSSH2_SESSION *handle, unsigned char **signature, size_t *signature_len,
                         const unsigned char *data, size_t len, void **abstract)
{
    struct login *self = *abstract;
    (void)handle;
    return ssh_agent_sign(&self->agent, self->signing->blob, self->signing->bytes, data, len, signature, signature_len,
                          &self->sign_err)
               ? -1
               : 0;
}

/* 1: logged in; 0: rejected; negative: the connection failed. */
static int after_try(struct login *self, int rc, const char *what, struct cb_err *err)
{
    if (rc == 0)
        return 1;
    self->refused++;
    if (rc == LIBSSH2_ERROR_SOCKET_DISCONNECT || rc == LIBSSH2_ERROR_SOCKET_SEND || rc == LIBSSH2_ERROR_SOCKET_RECV ||
        rc == LIBSSH2_ERROR_PROTO)
        return cb_fail(err, CB_ERR_USAGE,
                       "%s closed the connection after %u keys of %s were refused (the last: %s); name the right one "
                       "with IdentityFile and IdentitiesOnly yes in ~/.ssh/config",
                       self->host->alias, self->refused, self->host->user, what);
    return 0;
}

static int try_agent_key(struct login *self, const struct ssh_agent_key *key, struct cb_err *err)
{
    int rc, failed;
    void *abstract = self;
    enum ssh_key_kind kind = ssh_key_kind_of_blob(key->blob, key->bytes);
    if (kind == SSH_KEY_UNKNOWN || kind == SSH_KEY_OTHER)
        return 0;
    self->signing = key;
    self->sign_err = (struct cb_err){0};
    SSH_AWAIT(
        self->session, self->deadline_ns, rc,
        libssh2_userauth_publickey(self->handle, self->host->user, key->blob, key->bytes, sign_by_agent, &abstract),
        failed, err);
    if (failed)
        return failed;
    if (rc && self->sign_err.code)
        note(self, "%s", self->sign_err.message);
    else if (rc && kind == SSH_KEY_RSA)
        note(self, "the agent's RSA key %s was refused (see below)", key->comment);
    return after_try(self, rc, key->comment, err);
}

/* Whether a file holds a key that can be tried; otherwise notes the reason. */
static bool is_usable(struct login *self, const char *path, bool must_exist)
{
    struct cb_err err;
    int rc = ssh_key_read(&self->key, path, &err);
    if (rc == CB_ERR_NOT_FOUND && must_exist)
        note(self, "%s does not exist", path);
    else if (rc && rc != CB_ERR_NOT_FOUND)
        note(self, "%s", err.message);
    if (rc)
        return false;
    if (self->key.is_private && self->key.readable_by_others)
        note(self, "%s can be read by others and is not used (chmod 600)", path);
    else if (self->key.is_private && self->key.has_passphrase)
        note(self, "%s has a passphrase: give it to the agent once with ssh-add", path);
    else if (self->key.kind == SSH_KEY_OTHER)
        note(self, "%s is of a kind that libssh2 does not have", path);
    else
        return self->key.is_private;
    return false;
}

static int try_file(struct login *self, const char *path, struct cb_err *err)
{
    int rc, failed;
    bool old_rsa = self->key.kind == SSH_KEY_RSA && !libssh2_version(0x010b00);
    SSH_AWAIT(self->session, self->deadline_ns, rc,
              libssh2_userauth_publickey_fromfile_ex(self->handle, self->host->user, (unsigned)strlen(self->host->user),
                                                     NULL, path, ""),
              failed, err);
    if (failed)
        return failed;
    if (rc && old_rsa)
        note(self, "%s is an RSA key", path);
    else if (rc == LIBSSH2_ERROR_FILE)
        note(self, "libssh2 cannot read %s", path);
    else if (rc)
        note(self, "%s was refused", path);
    return after_try(self, rc, path, err);
}

/* The usual files, or those that the configuration names. */
static size_t key_files(struct login *self, const char *paths[SSH_LIST_MAX])
{
    const struct ssh_host *host = self->host;
    static const char *const names[3] = {"id_ed25519", "id_ecdsa", "id_rsa"};
    const char *home = getenv("HOME");
    size_t count = 0;
    for (size_t i = 0; i < host->identity_files.count; i++)
        if (strcasecmp(host->identity_files.items[i], "none") != 0)
            paths[count++] = host->identity_files.items[i];
    if (host->identity_files.count)
        return count;
    for (size_t i = 0; i < 3; i++) {
        snprintf(self->usual[i], PATH_MAX, "%s/.ssh/%s", home ? home : "", names[i]);
        paths[count++] = self->usual[i];
    }
    return count;
}

/* With IdentitiesOnly the agent is asked only for keys that the configuration names. */
static bool is_wanted(struct login *self, const struct ssh_agent_key *key, const char *const *paths, size_t count)
{
    if (self->host->identities_only != 1)
        return true;
    for (size_t i = 0; i < count; i++) {
        char public_path[PATH_MAX];
        bool good = ssh_key_read(&self->key, paths[i], NULL) == 0;
        if (!good && snprintf(public_path, sizeof public_path, "%s.pub", paths[i]) < (int)sizeof public_path)
            good = ssh_key_read(&self->key, public_path, NULL) == 0;
        if (good && self->key.blob_bytes == key->bytes && memcmp(self->key.blob, key->blob, key->bytes) == 0)
            return true;
    }
    return false;
}

static int try_agent(struct login *self, const char *const *paths, size_t count, struct cb_err *err)
{
    const char *path = *self->host->identity_agent ? self->host->identity_agent : getenv("SSH_AUTH_SOCK");
    struct cb_err agent_err;
    int rc = 0;
    if (!path || !*path || strcasecmp(path, "none") == 0)
        return 0;
    if (ssh_agent_open(&self->agent, path, AGENT_BOUND_NS, &agent_err)) {
        note(self, "%s", agent_err.message);
        return 0;
    }
    for (int rsa = 0; rc == 0 && rsa < 2; rsa++) /* keys that may not work go last, since servers limit the attempts */
        for (size_t i = 0; rc == 0 && i < self->agent.count; i++) {
            const struct ssh_agent_key *key = &self->agent.keys[i];
            bool is_rsa = ssh_key_kind_of_blob(key->blob, key->bytes) == SSH_KEY_RSA;
            if (is_rsa == rsa && is_wanted(self, key, paths, count))
                rc = try_agent_key(self, key, err);
        }
    return rc;
}

static int refuse(const struct login *self, struct cb_err *err)
{
    bool rsa = strstr(self->notes.data, "RSA key") && !libssh2_version(0x010b00);
    return cb_fail(err, CB_ERR_USAGE,
                   "%s lets %s in with none of the keys at hand (%u of the agent%s%s).%s%s Make one with ssh-keygen -t "
                   "ed25519 if you have none, and put it there with ssh-copy-id %s",
                   self->host->alias, self->host->user, (unsigned)self->agent.count, self->notes.len ? "; " : "",
                   self->notes.data, rsa ? " RSA keys: libssh2 " : "",
                   rsa ? LIBSSH2_VERSION " signs with SHA-1 only, which current servers refuse, also where ssh itself "
                                         "works; use an Ed25519 or ECDSA key."
                       : "",
                   self->host->alias);
}

/* NULL and 0: logged in without any key. */
static int list_methods(struct login *self, const char **methods, struct cb_err *err)
{
    int failed;
    const char *user = self->host->user;
    SSH_AWAIT_POINTER(self->session, self->deadline_ns, *methods,
                      libssh2_userauth_list(self->handle, user, (unsigned)strlen(user)), failed, err);
    if (failed)
        return failed;
    if (!*methods && !libssh2_userauth_authenticated(self->handle))
        return ssh_session_fail(self->session, err, "asking how to log in");
    if (*methods && !strstr(*methods, "publickey"))
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s takes no keys from %s, only: %s; ckptbench logs in with keys alone",
                       self->host->alias, user, *methods);
    return 0;
}

int ssh_login_authenticate(struct ssh_session *session, const struct ssh_host *host, uint64_t deadline_ns,
                           struct cb_err *err)
{
    const char *paths[SSH_LIST_MAX], *methods = NULL;
    struct login *login = calloc(1, sizeof *login); /* large, so not on the stack */
    if (!login)
        return alloc_fail(err, "to log in to %s", host->alias);
    login->session = session;
    login->handle = ssh_session_handle(session);
    login->host = host;
    login->deadline_ns = deadline_ns;
    login->agent.socket = -1;
    buf_init(&login->notes, NOTES_BYTES);
    int rc = list_methods(login, &methods, err);
    if (rc == 0 && methods) {
        size_t count = key_files(login, paths);
        rc = try_agent(login, paths, count, err);
        for (size_t i = 0; rc == 0 && i < count; i++)
            if (is_usable(login, paths[i], host->identity_files.count > 0))
                rc = try_file(login, paths[i], err);
        rc = rc > 0 ? 0 : rc ? rc : refuse(login, err);
    }
    ssh_agent_close(&login->agent);
    buf_release(&login->notes);
    free(login);
    return rc;
}

#endif
