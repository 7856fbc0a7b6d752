/* Shared by load_share.c (regions and groups) and load_share_blocks.c (parts, blocks and their order). */
#ifndef CKPT_LOAD_LOAD_SHARE_INTERNAL_H
#define CKPT_LOAD_LOAD_SHARE_INTERNAL_H

#include "ckpt/load/load_share.h"

/* Cuts the regions, which are sorted and grouped, into parts and blocks. */
int load_share_make_blocks(struct load_share *self, const struct layout *layout, const struct share_options *options,
                           struct cb_err *err) CB_MUST_CHECK;

#endif
