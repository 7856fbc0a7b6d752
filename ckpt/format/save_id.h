/* The save id: 64 random bits that a save stores in its metadata and in each of its files, so that files of two saves in
 * one folder are told apart. 0 is none: of saves by older versions and by other programs. */
#ifndef CKPT_FORMAT_SAVE_ID_H
#define CKPT_FORMAT_SAVE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An item has its id in its first bytes, or the file has it, if that has a header: as many as these contain it. */
#define SAVE_ID_FRONT_BYTES 64
#define SAVE_ID_TEXT_BYTES 17

uint64_t save_id_draw(void);
/* 16 hexadecimal digits, as metadata that is text has it. */
void save_id_format(uint64_t save_id, char text[SAVE_ID_TEXT_BYTES]);
/* 0 if the text is anything else; PyTorch stores ids of another form at the same place. */
uint64_t save_id_parse(const char *text, size_t len);

#endif
