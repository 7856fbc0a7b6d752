/* Processes of a watched command that go on when it has ended, as daemons do. */
#ifndef AGENT_ATTEMPT_WATCH_LEFT_H
#define AGENT_ATTEMPT_WATCH_LEFT_H

#include "run/status_page.h"

/* Adds a fact to the page if processes of this machine still have the folder of lines in their environment: what they
 * save from now on is not recorded. Those that are about to end get two seconds, unless a request to end arrives. */
void watch_left_note(const char *folder, struct status_page *page);

#endif
