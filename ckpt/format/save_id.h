/* The save id: 64 random bits that a save stores in its metadata and in each of its files, so that files of two saves
 * in one folder can be distinguished. 0: no id, as in saves by older versions and by other programs. */
#ifndef CKPT_FORMAT_SAVE_ID_H
#define CKPT_FORMAT_SAVE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of first bytes that contain the id: those of an item, or of a file with a header. */
#define SAVE_ID_FRONT_BYTES 64
#define SAVE_ID_TEXT_BYTES 17

uint64_t save_id_draw(void);
/* 16 hexadecimal digits, for metadata that is text. */
void save_id_format(uint64_t save_id, char text[SAVE_ID_TEXT_BYTES]);
/* 0 for any other text: PyTorch stores ids of another form in the same place. */
uint64_t save_id_parse(const char *text, size_t len);

#endif
