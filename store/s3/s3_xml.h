/* Reads the XML that S3 servers answer: elements and text, no more. Bounded and without allocation but for the text.
 *
 * Attributes, comments, processing instructions and name spaces are passed over; a document type is refused, and with
 * it every entity but the five of XML and characters by number. */
#ifndef STORE_S3_S3_XML_H
#define STORE_S3_S3_XML_H

#include <stddef.h>

#include "core/err.h"

#define S3_XML_MAX_DEPTH 16
#define S3_XML_PATH_BYTES 256
#define S3_XML_TEXT_BYTES 8192 /* of one element; more is cut */

/* Called at the end of every element, with its path from the root ("ListBucketResult/Contents/Key") and the text
 * directly in it. What it returns, if not 0, ends the reading and is returned. */
typedef int (*s3_xml_fn)(void *context, const char *path, const char *text, struct cb_err *err);

/* `what` opens the sentence about bytes that are no such document (CB_ERR_FORMAT). */
int s3_xml_read(const char *what, const char *bytes, size_t len, s3_xml_fn each, void *context,
                struct cb_err *err) CB_MUST_CHECK;

#endif
