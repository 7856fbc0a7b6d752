/* Reads the XML of S3 servers: only elements and text. Bounded, and without allocation except for the text.
 *
 * Attributes, comments, processing instructions and namespaces are skipped; a document type is rejected, and with it
 * every entity except the five of XML and numeric characters. */
#ifndef STORE_S3_S3_XML_H
#define STORE_S3_S3_XML_H

#include <stddef.h>

#include "core/err.h"

#define S3_XML_MAX_DEPTH 16
#define S3_XML_PATH_BYTES 256
#define S3_XML_TEXT_BYTES 8192 /* of one element; more is truncated */

/* Called at the end of every element, with its path from the root ("ListBucketResult/Contents/Key") and the text
 * directly in it. A non-zero result stops and is returned. */
typedef int (*s3_xml_fn)(void *context, const char *path, const char *text, struct cb_err *err);

/* Errors about a malformed document (CB_ERR_FORMAT) start with `what`. */
int s3_xml_read(const char *what, const char *bytes, size_t len, s3_xml_fn each, void *context,
                struct cb_err *err) CB_MUST_CHECK;

#endif
