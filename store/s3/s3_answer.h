/* A server's reply: headers, and the error document. Pure; all input is untrusted. */
#ifndef STORE_S3_S3_ANSWER_H
#define STORE_S3_S3_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define S3_ETAG_BYTES 96
#define S3_MARK "x-amz-meta-ckptbench-upload" /* our own metadata: the upload that created an object */
#define S3_MARK_BYTES 33

struct s3_answer {
    long status;
    bool has_length, has_range, has_date, has_crc32c;
    uint64_t length;                             /* Content-Length */
    uint64_t range_first, range_last, range_all; /* Content-Range; range_all is UINT64_MAX for '*' */
    uint64_t date_ns;
    uint64_t modified_ns;     /* Last-Modified; 0: absent */
    char etag[S3_ETAG_BYTES]; /* with its quotes */
    char mark[S3_MARK_BYTES]; /* "" if there is none */
    char request_id[96];
    char region[64];   /* the bucket's region, if the server reports that it is another one */
    char code[64];     /* of the error document */
    char message[320]; /* of the error document */
};

void s3_answer_clear(struct s3_answer *self);
/* Parses one header line, with or without its line end; a status line starts a new reply. */
void s3_answer_take_line(struct s3_answer *self, const char *line, size_t len);
/* "bytes 0-99/1000". */
bool s3_parse_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *all);
/* Fills code, message and region if the body is an error document; else false. */
bool s3_answer_take_error(struct s3_answer *self, const char *body, size_t len);

/* The number after the '-' in the ETag of a multipart object; 0 if there is none. */
uint32_t s3_etag_parts(const char *etag);

#endif
