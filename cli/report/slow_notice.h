/* Says on stderr that something takes long, how long it has taken, and what it holds by now: after some seconds, and
 * then again and again. Nothing of it is heard where it is over by then, or with -q. */
#ifndef CLI_REPORT_SLOW_NOTICE_H
#define CLI_REPORT_SLOW_NOTICE_H

struct slow_notice;

/* `what` is borrowed: "planning". NULL where no thread can be had, which patience_free takes, too. */
struct slow_notice *slow_notice_new(const char *what);
void slow_notice_free(struct slow_notice *self);

#endif
