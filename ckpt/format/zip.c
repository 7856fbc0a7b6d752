/* Writes and reads the structure of zip archives, including zip64. */
#include "ckpt/format/zip.h"

#include <assert.h>
#include <string.h>

#include "core/hash.h"

#define LOCAL_SIGNATURE UINT32_C(0x04034b50)
#define DESCRIPTOR_SIGNATURE UINT32_C(0x08074b50)
#define CENTRAL_SIGNATURE UINT32_C(0x02014b50)
#define END_SIGNATURE UINT32_C(0x06054b50)
#define END64_SIGNATURE UINT32_C(0x06064b50)
#define LOCATOR_SIGNATURE UINT32_C(0x07064b50)

#define LOCAL_BYTES 30
#define CENTRAL_BYTES 46
#define ENDS_BYTES (56 + 20 + 22) /* zip64 end, its locator, end */
#define FB_BYTES 4                /* id and length of the padding */
#define ZIP64_FIELD 1
#define ID_FIELD UINT32_C(0x4243) /* "CB": the extra field of a save id */
#define ID_BYTES 12               /* id and length of the field, the save id */
#define ZIP64_LOCAL_BYTES 20      /* id, length, two sizes; the same in the central directory */

#define FLAG_DESCRIPTOR 0x0008
#define FLAG_UTF8 0x0800

#define NAME_PICKLE "archive/data.pkl"
#define NAME_ORDER "archive/byteorder"
#define NAME_VERSION "archive/version"
#define NAME_DATA "archive/data/0"
#define TEXT_ORDER "little"
#define TEXT_VERSION "3\n"
#define CRC_ORDER UINT32_C(0x19e33d85) /* of the two texts */
#define CRC_VERSION UINT32_C(0x55679ed1)
#define LENGTH(text) ((uint32_t)(sizeof(text) - 1))

static const uint32_t small_bytes =
    LOCAL_BYTES + LENGTH(NAME_ORDER) + LENGTH(TEXT_ORDER) + LOCAL_BYTES + LENGTH(NAME_VERSION) + LENGTH(TEXT_VERSION);

static char *put_u16(char *at, uint32_t value)
{
    at[0] = (char)(unsigned char)value;
    at[1] = (char)(unsigned char)(value >> 8);
    return at + 2;
}

static char *put_u32(char *at, uint32_t value)
{
    memcpy(at, &value, 4);
    return at + 4;
}

static char *put_u64(char *at, uint64_t value)
{
    memcpy(at, &value, 8);
    return at + 8;
}

/* From here on sizes need 64 bits: the largest 32-bit number refers to the extra field. */
static bool is_zip64(uint64_t bytes)
{
    return bytes >= UINT32_MAX;
}

struct record {
    const char *name;
    uint32_t name_len, crc, flags;
    uint64_t bytes;
    uint64_t at; /* offset of the local header in the archive */
};

static char *put_local(char *at, const struct record *record, uint32_t extra_bytes)
{
    bool streamed = record->flags & FLAG_DESCRIPTOR; /* sizes and CRC follow the data */
    uint32_t bytes = is_zip64(record->bytes) ? UINT32_MAX : streamed ? 0 : (uint32_t)record->bytes;
    at = put_u32(at, LOCAL_SIGNATURE);
    at = put_u16(at, is_zip64(record->bytes) ? 45 : 0); /* version needed */
    at = put_u16(at, record->flags);
    at = put_u16(at, 0); /* stored */
    memset(at, 0, 4);    /* time and date */
    at = put_u32(at + 4, streamed ? 0 : record->crc);
    at = put_u32(at, bytes);
    at = put_u32(at, bytes);
    at = put_u16(at, record->name_len);
    at = put_u16(at, extra_bytes);
    memcpy(at, record->name, record->name_len);
    return at + record->name_len;
}

static char *put_zip64_extra(char *at, uint64_t bytes)
{
    at = put_u16(at, ZIP64_FIELD);
    at = put_u16(at, 16);
    at = put_u64(at, bytes);
    return put_u64(at, bytes);
}

static char *put_central(char *at, const struct record *record)
{
    bool big = is_zip64(record->bytes);
    uint32_t bytes = big ? UINT32_MAX : (uint32_t)record->bytes;
    at = put_u32(at, CENTRAL_SIGNATURE);
    at = put_u16(at, big ? 45 : 0); /* version made by, version needed */
    at = put_u16(at, big ? 45 : 0);
    at = put_u16(at, record->flags);
    at = put_u16(at, 0);
    memset(at, 0, 4);
    at = put_u32(at + 4, record->crc);
    at = put_u32(at, bytes);
    at = put_u32(at, bytes);
    at = put_u16(at, record->name_len);
    at = put_u16(at, big ? ZIP64_LOCAL_BYTES : 0);
    memset(at, 0, 10); /* comment, disk, attributes */
    at = put_u32(at + 10, (uint32_t)record->at);
    memcpy(at, record->name, record->name_len);
    at += record->name_len;
    return big ? put_zip64_extra(at, record->bytes) : at;
}

static char *put_ends(char *at, uint32_t records, uint64_t central_at, uint64_t central_bytes)
{
    at = put_u32(at, END64_SIGNATURE);
    at = put_u64(at, 44); /* length of the rest of this record */
    at = put_u16(at, 45);
    at = put_u16(at, 45);
    at = put_u64(at, 0); /* disks */
    at = put_u64(at, records);
    at = put_u64(at, records);
    at = put_u64(at, central_bytes);
    at = put_u64(at, central_at);
    at = put_u32(at, LOCATOR_SIGNATURE);
    at = put_u32(at, 0);
    at = put_u64(at, central_at + central_bytes);
    at = put_u32(at, 1);
    at = put_u32(at, END_SIGNATURE);
    at = put_u32(at, 0);
    at = put_u16(at, records);
    at = put_u16(at, records);
    at = put_u32(at, (uint32_t)central_bytes);
    at = put_u32(at, is_zip64(central_at) ? UINT32_MAX : (uint32_t)central_at);
    return put_u16(at, 0);
}

/* The records before the payload, with their offsets. */
struct front {
    struct record pickle, order, version;
    uint64_t save_id;
};

static uint32_t id_bytes(uint64_t save_id)
{
    return save_id ? ID_BYTES : 0;
}

static struct front front_of(const void *pickle, size_t pickle_bytes, uint64_t save_id)
{
    struct front front = {
        .save_id = save_id,
        .pickle = {NAME_PICKLE, LENGTH(NAME_PICKLE), crc32_zip(0, pickle, pickle_bytes), FLAG_UTF8, pickle_bytes, 0},
        .order = {NAME_ORDER, LENGTH(NAME_ORDER), CRC_ORDER, FLAG_UTF8, LENGTH(TEXT_ORDER),
                  LOCAL_BYTES + LENGTH(NAME_PICKLE) + id_bytes(save_id) + pickle_bytes},
        .version = {NAME_VERSION, LENGTH(NAME_VERSION), CRC_VERSION, FLAG_UTF8, LENGTH(TEXT_VERSION), 0},
    };
    front.version.at = front.order.at + LOCAL_BYTES + LENGTH(NAME_ORDER) + LENGTH(TEXT_ORDER);
    return front;
}

static uint32_t front_bytes(size_t pickle_bytes, uint64_t save_id)
{
    return LOCAL_BYTES + LENGTH(NAME_PICKLE) + id_bytes(save_id) + (uint32_t)pickle_bytes + small_bytes;
}

static char *put_save_id(char *at, uint64_t save_id)
{
    if (save_id == 0)
        return at;
    at = put_u16(at, ID_FIELD);
    at = put_u16(at, sizeof save_id);
    return put_u64(at, save_id);
}

static char *put_front(char *at, const struct front *front, const void *pickle)
{
    at = put_local(at, &front->pickle, id_bytes(front->save_id));
    at = put_save_id(at, front->save_id);
    memcpy(at, pickle, front->pickle.bytes);
    at = put_local(at + front->pickle.bytes, &front->order, 0);
    memcpy(at, TEXT_ORDER, LENGTH(TEXT_ORDER));
    at = put_local(at + LENGTH(TEXT_ORDER), &front->version, 0);
    memcpy(at, TEXT_VERSION, LENGTH(TEXT_VERSION));
    return at + LENGTH(TEXT_VERSION);
}

static char *put_front_central(char *at, const struct front *front)
{
    at = put_central(at, &front->pickle);
    at = put_central(at, &front->order);
    return put_central(at, &front->version);
}

uint32_t zip_header_bytes(size_t pickle_bytes, uint64_t payload_bytes, uint64_t item_offset, uint32_t alignment)
{
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment <= ZIP_MAX_ALIGNMENT);
    uint32_t least = front_bytes(pickle_bytes, UINT64_MAX) + LOCAL_BYTES + LENGTH(NAME_DATA) + FB_BYTES +
                     (is_zip64(payload_bytes) ? ZIP64_LOCAL_BYTES : 0);
    return least + (uint32_t)(-(item_offset + least) & (alignment - 1));
}

uint32_t zip_trailer_bytes(uint64_t payload_bytes)
{
    uint32_t bytes = 16 + 4 * CENTRAL_BYTES + LENGTH(NAME_PICKLE) + LENGTH(NAME_ORDER) + LENGTH(NAME_VERSION) +
                     LENGTH(NAME_DATA) + ENDS_BYTES;
    return bytes + (is_zip64(payload_bytes) ? 8 + ZIP64_LOCAL_BYTES : 0);
}

char *zip_put_header(char *at, const void *pickle, size_t pickle_bytes, uint64_t payload_bytes, uint32_t header_bytes,
                     uint64_t save_id)
{
    struct front front = front_of(pickle, pickle_bytes, save_id);
    char *end = at + header_bytes;
    at = put_front(at, &front, pickle);
    struct record data = {NAME_DATA, LENGTH(NAME_DATA), 0, FLAG_DESCRIPTOR | FLAG_UTF8, payload_bytes, 0};
    uint32_t extra = (uint32_t)(end - at) - LOCAL_BYTES - LENGTH(NAME_DATA);
    at = put_local(at, &data, extra);
    if (is_zip64(payload_bytes))
        at = put_zip64_extra(at, payload_bytes);
    *at++ = 'F';
    *at++ = 'B';
    at = put_u16(at, (uint32_t)(end - at) - 2);
    memset(at, 'Z', (size_t)(end - at));
    return end;
}

char *zip_put_trailer(char *at, const void *pickle, size_t pickle_bytes, uint64_t payload_bytes, uint32_t header_bytes,
                      uint32_t crc, uint64_t save_id)
{
    struct front front = front_of(pickle, pickle_bytes, save_id);
    struct record data = {NAME_DATA,     LENGTH(NAME_DATA),
                          crc,           FLAG_DESCRIPTOR | FLAG_UTF8,
                          payload_bytes, front_bytes(pickle_bytes, save_id)};
    char *begin = at;
    at = put_u32(at, DESCRIPTOR_SIGNATURE);
    at = put_u32(at, crc);
    if (is_zip64(payload_bytes))
        at = put_u64(put_u64(at, payload_bytes), payload_bytes);
    else
        at = put_u32(put_u32(at, (uint32_t)payload_bytes), (uint32_t)payload_bytes);
    char *central = at;
    at = put_front_central(at, &front);
    at = put_central(at, &data);
    uint64_t central_at = header_bytes + payload_bytes + (uint64_t)(central - begin);
    return put_ends(at, 4, central_at, (uint64_t)(at - central));
}

size_t zip_plain_bytes(size_t pickle_bytes, uint64_t save_id)
{
    return front_bytes(pickle_bytes, save_id) + 3 * CENTRAL_BYTES + LENGTH(NAME_PICKLE) + LENGTH(NAME_ORDER) +
           LENGTH(NAME_VERSION) + ENDS_BYTES;
}

char *zip_put_plain(char *at, const void *pickle, size_t pickle_bytes, uint64_t save_id)
{
    struct front front = front_of(pickle, pickle_bytes, save_id);
    char *begin = at;
    at = put_front(at, &front, pickle);
    char *central = at;
    at = put_front_central(at, &front);
    return put_ends(at, 3, (uint64_t)(central - begin), (uint64_t)(at - central));
}

/* --- reading --- */

static uint32_t get_u16(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static uint32_t get_u32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint64_t get_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

/* A descriptor whose record has exactly the bytes before it; `end` is the end of the descriptor. */
static bool find_descriptor(const unsigned char *bytes, size_t len, size_t data, size_t *record_bytes, size_t *end)
{
    for (size_t at = data; at + 16 <= len; at++) {
        const unsigned char *hit = memchr(bytes + at, 'P', len - 16 - at + 1);
        if (!hit)
            return false;
        at = (size_t)(hit - bytes);
        if (get_u32(hit) != DESCRIPTOR_SIGNATURE || get_u32(hit + 8) != at - data || get_u32(hit + 12) != at - data)
            continue;
        if (crc32_zip(0, bytes + data, at - data) != get_u32(hit + 4) && get_u32(hit + 4) != 0)
            continue;
        *record_bytes = at - data;
        *end = at + 16;
        return true;
    }
    return false;
}

/* The offset of the first 64 bits of an extra field of a local header; 0 if it has no such field. */
static size_t find_field(const unsigned char *extra, size_t len, uint32_t field)
{
    for (size_t at = 0; at + 4 <= len;) {
        size_t size = get_u16(extra + at + 2);
        if (size > len - at - 4)
            return 0;
        if (get_u16(extra + at) == field && size >= 8)
            return at + 4;
        at += 4 + size;
    }
    return 0;
}

/* Offset of the save id; 0 if there is none. */
static size_t find_save_id(const unsigned char *header, size_t len)
{
    if (len < LOCAL_BYTES || get_u32(header) != LOCAL_SIGNATURE)
        return 0;
    size_t extra_at = LOCAL_BYTES + get_u16(header + 26), extra_len = get_u16(header + 28);
    if (extra_at >= len || extra_len > len - extra_at)
        return 0;
    size_t at = find_field(header + extra_at, extra_len, ID_FIELD);
    return at ? extra_at + at : 0;
}

uint64_t zip_read_save_id(const void *bytes, size_t len)
{
    size_t at = find_save_id(bytes, len);
    return at ? get_u64((const unsigned char *)bytes + at) : 0;
}

void zip_replace_save_id(void *bytes, size_t len, uint64_t save_id)
{
    size_t at = find_save_id(bytes, len);
    if (at)
        put_u64((char *)bytes + at, save_id);
}

int zip_next_record(const void *bytes, size_t len, size_t at, struct zip_record *record, size_t *next,
                    struct cb_err *err)
{
    const unsigned char *header = (const unsigned char *)bytes + at;
    if (at > len || len - at < LOCAL_BYTES)
        return cb_fail(err, CB_ERR_CORRUPT, "the item ends inside a zip header at byte %zu", at);
    if (get_u32(header) != LOCAL_SIGNATURE)
        return cb_fail(err, CB_ERR_CORRUPT, "no zip header at byte %zu of the item", at);
    if (get_u16(header + 8) != 0)
        return cb_fail(err, CB_ERR_CORRUPT, "the record at byte %zu of the item says it is compressed (method %u)", at,
                       get_u16(header + 8));
    size_t name_len = get_u16(header + 26), extra_len = get_u16(header + 28);
    if (len - at - LOCAL_BYTES < name_len + extra_len)
        return cb_fail(err, CB_ERR_CORRUPT, "the item ends inside a zip header at byte %zu", at);
    size_t data = at + LOCAL_BYTES + name_len + extra_len;
    uint64_t size = get_u32(header + 22);
    size_t end = data;
    if (size == UINT32_MAX) {
        const unsigned char *extra = header + LOCAL_BYTES + name_len;
        size_t found = find_field(extra, extra_len, ZIP64_FIELD);
        if (!found)
            return cb_fail(err, CB_ERR_CORRUPT, "the zip header at byte %zu of the item lacks its 64-bit length", at);
        size = get_u64(extra + found);
    }
    if (get_u16(header + 6) & FLAG_DESCRIPTOR) {
        size_t found;
        size = find_descriptor(bytes, len, data, &found, &end) ? found : UINT64_MAX;
    } else if (size <= len - data) {
        end = data + (size_t)size;
    }
    *record = (struct zip_record){(const char *)header + LOCAL_BYTES, name_len, data, size};
    *next = end;
    return 0;
}

bool zip_name_is(const char *record_name, size_t len, const char *name)
{
    const char *slash = memchr(record_name, '/', len);
    if (!slash)
        return false;
    size_t rest = len - (size_t)(slash + 1 - record_name);
    return rest == strlen(name) && memcmp(slash + 1, name, rest) == 0;
}

/* A record according to the directory. */
struct entry {
    const char *name;
    size_t name_len, entry_bytes;
    uint32_t crc;
    uint64_t bytes, at; /* of the data; the offset of its local header */
};

/* 64-bit numbers are in the extra field in this order, each only if its 32-bit field is full. */
static bool take_wide_numbers(const unsigned char *extra, size_t len, bool wide[3], uint64_t numbers[3])
{
    for (size_t at = 0; at + 4 <= len;) {
        size_t size = get_u16(extra + at + 2), used = 0;
        if (size > len - at - 4)
            return false;
        for (int i = 0; get_u16(extra + at) == 1 && i < 3; i++) {
            if (!wide[i])
                continue;
            if (size - used < 8)
                return false;
            numbers[i] = get_u64(extra + at + 4 + used);
            wide[i] = false;
            used += 8;
        }
        at += 4 + size;
    }
    return !wide[0] && !wide[1] && !wide[2];
}

static bool read_entry(const unsigned char *bytes, size_t len, struct entry *entry)
{
    if (len < CENTRAL_BYTES || get_u32(bytes) != CENTRAL_SIGNATURE)
        return false;
    size_t name_len = get_u16(bytes + 28), extra_len = get_u16(bytes + 30);
    size_t size = CENTRAL_BYTES + name_len + extra_len + get_u16(bytes + 32);
    uint64_t numbers[3] = {get_u32(bytes + 24), get_u32(bytes + 20), get_u32(bytes + 42)};
    bool wide[3] = {numbers[0] == UINT32_MAX, numbers[1] == UINT32_MAX, numbers[2] == UINT32_MAX};
    if (size > len || !take_wide_numbers(bytes + CENTRAL_BYTES + name_len, extra_len, wide, numbers))
        return false;
    *entry = (struct entry){
        (const char *)bytes + CENTRAL_BYTES, name_len, size, get_u32(bytes + 16), numbers[0], numbers[2]};
    return true;
}

/* Checks all entries, also after the requested one: each must begin after the one before it. */
static int find_entry(const unsigned char *directory, size_t len, size_t records, const char *name,
                      struct entry *wanted, struct cb_err *err)
{
    uint64_t end = 0;
    bool found = false;
    for (size_t i = 0; i < records; i++) {
        struct entry entry;
        if (!read_entry(directory, len, &entry))
            return cb_fail(err, CB_ERR_CORRUPT, "the zip directory of the item is damaged");
        if (entry.at < end)
            return cb_fail(err, CB_ERR_CORRUPT,
                           "records of the item's zip overlap: one begins at byte %llu, inside another",
                           (unsigned long long)entry.at);
        if (__builtin_add_overflow(entry.at, entry.bytes, &end) ||
            __builtin_add_overflow(end, LOCAL_BYTES + entry.name_len, &end))
            return cb_fail(err, CB_ERR_CORRUPT, "the zip directory of the item is damaged");
        if (!found && zip_name_is(entry.name, entry.name_len, name)) {
            *wanted = entry;
            found = true;
        }
        directory += entry.entry_bytes;
        len -= entry.entry_bytes;
    }
    return found ? 0 : cb_fail(err, CB_ERR_CORRUPT, "the zip directory of the item has no record %s", name);
}

int zip_find_crc(const void *last_bytes, size_t len, const char *name, uint32_t *crc, uint64_t *bytes,
                 struct cb_err *err)
{
    const unsigned char *all = last_bytes;
    if (len < 22 || get_u32(all + len - 22) != END_SIGNATURE)
        return cb_fail(err, CB_ERR_CORRUPT, "the item does not end as a zip does");
    size_t end = len - 22, records = get_u16(all + end + 10);
    uint64_t central_bytes = get_u32(all + end + 12);
    if (end >= 76 && get_u32(all + end - 20) == LOCATOR_SIGNATURE && get_u32(all + end - 76) == END64_SIGNATURE) {
        end -= 76;
        central_bytes = get_u64(all + end + 40);
    }
    if (central_bytes > end)
        return cb_fail(err, CB_ERR_CORRUPT, "the zip directory of the item is larger than what was read of it");
    struct entry entry = {0};
    int code = find_entry(all + end - central_bytes, (size_t)central_bytes, records, name, &entry, err);
    if (code)
        return code;
    *crc = entry.crc;
    *bytes = entry.bytes;
    return 0;
}
