/* Reports on stderr that an operation takes long, with the time and the memory used so far: after some seconds, and
 * then at intervals. Prints nothing if the operation finishes sooner, or with -q. */
#ifndef CLI_REPORT_SLOW_NOTICE_H
#define CLI_REPORT_SLOW_NOTICE_H

struct slow_notice;

/* `what` is borrowed: "planning". NULL if no thread can be started; slow_notice_free accepts NULL. */
struct slow_notice *slow_notice_new(const char *what);
void slow_notice_free(struct slow_notice *self);

#endif
