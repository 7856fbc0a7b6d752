/* Sources of tokens: samples that depend on their number alone, files that are what they say, text and back; and a
 * model that learns from the source which needs no file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/buf.h"
#include "train/data.h"
#include "train/optimizer.h"
#include "train/tokenizer.h"

static char folder[64];

static int make_folder(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, "/tmp/ckptbench-train-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    char path[128];
    const char *const names[] = {"tokens.bin", "text.txt", "vocab.json", "merges.txt"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static const char *write_file(const char *name, const void *bytes, size_t len)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
    return path;
}

static const char *write_tokens(uint32_t magic, uint32_t version, uint32_t said, uint32_t count)
{
    static uint32_t file[256 + 5000];
    memset(file, 0, sizeof file);
    file[0] = magic;
    file[1] = version;
    file[2] = said;
    uint16_t *tokens = (uint16_t *)(file + 256);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (uint16_t)(i % 1000);
    return write_file("tokens.bin", file, 1024 + 2 * (size_t)count);
}

static struct train_data *open_data(const char *source, uint32_t vocabulary, uint32_t sequence, double share)
{
    struct train_data_setup setup = {.source = source, .vocabulary = vocabulary, .sequence = sequence, .seed = 3};
    struct train_data *data = NULL;
    struct cb_err err = {0};
    setup.validation_share = share;
    if (train_data_open(&setup, &data, &err))
        fail_msg("%s", err.message);
    return data;
}

static void refuse(const char *source, uint32_t vocabulary, uint32_t sequence, int code, const char *says)
{
    struct train_data_setup setup = {.source = source, .vocabulary = vocabulary, .sequence = sequence};
    struct train_data *data = NULL;
    struct cb_err err = {0};
    assert_int_equal(train_data_open(&setup, &data, &err), code);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    assert_null(data);
}

static void token_files_are_read_in_windows(void **unused)
{
    (void)unused;
    struct train_data *data = open_data(write_tokens(20240520, 1, 901, 901), 1000, 100, 0.2);
    uint32_t tokens[100], targets[100], seen[9] = {0};
    assert_int_equal(train_data_samples(data, DATA_TRAINING), 7);
    assert_int_equal(train_data_samples(data, DATA_VALIDATION), 2);
    for (uint64_t sample = 0; sample < 14; sample++) {
        assert_int_equal(train_data_sample(data, DATA_TRAINING, sample, tokens, targets, NULL), 0);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(tokens[i], tokens[0] + (uint32_t)i);
            assert_int_equal(targets[i], tokens[i] + 1);
        }
        assert_int_equal(tokens[0] % 100, 0);
        seen[tokens[0] / 100]++;
        if (sample == 6) /* an epoch takes each window once */
            for (int i = 0; i < 7; i++)
                assert_int_equal(seen[i], 1);
    }
    for (int i = 0; i < 9; i++)
        assert_int_equal(seen[i], i < 7 ? 2 : 0);
    assert_int_equal(train_data_sample(data, DATA_VALIDATION, 3, tokens, targets, NULL), 0);
    assert_int_equal(tokens[0], 800);
    train_data_close(data);
}

static void epochs_have_orders_of_their_own(void **unused)
{
    (void)unused;
    struct train_data *data = open_data(write_tokens(20240520, 1, 5000, 5000), 1000, 10, 0);
    uint32_t tokens[10], targets[10], first[499], same = 0, in_order = 0;
    for (uint64_t sample = 0; sample < 998; sample++) {
        assert_int_equal(train_data_sample(data, DATA_TRAINING, sample, tokens, targets, NULL), 0);
        if (sample < 499)
            first[sample] = tokens[0];
        else
            same += first[sample - 499] == tokens[0];
        in_order += sample < 499 && tokens[0] == sample * 10 % 1000;
    }
    assert_true(same < 30 && in_order < 30);
    train_data_close(data);
}

static void files_that_are_not_token_files_are_refused_by_name(void **unused)
{
    (void)unused;
    refuse(write_tokens(20240520, 2, 500, 500), 1000, 10, CB_ERR_FORMAT, "version 2");
    refuse(write_tokens(20240520, 1, 600, 500), 1000, 10, CB_ERR_FORMAT,
           "2024 bytes, but 600 tokens and the header are 2224");
    refuse(write_tokens(20240520, 1, 400, 500), 1000, 10, CB_ERR_FORMAT, "cut off or damaged");
    refuse(write_tokens(20240801, 1, 500, 500), 1000, 10, CB_ERR_FORMAT, "Llama 3");
    refuse(write_tokens(1, 1, 500, 500), 1000, 10, CB_ERR_FORMAT, "is no llm.c token file");
    refuse(write_tokens(20240520, 1, 500, 500), 450, 10, CB_ERR_FORMAT,
           "byte 1924: token 450 is not in the model's vocabulary of 450");
    refuse(write_tokens(20240520, 1, 500, 500), 1000, 500, CB_ERR_USAGE, "500 tokens, which are 0 samples of 500");
    refuse("/nowhere/tokens.bin", 1000, 10, CB_ERR_NOT_FOUND, "/nowhere/tokens.bin");
    refuse("/tmp", 1000, 10, CB_ERR_USAGE, "is no file");
    refuse(write_file("text.txt", "", 0), 1000, 10, CB_ERR_USAGE, "is empty");
    refuse(write_file("text.txt", "abcdefgh", 8), 256, 2, CB_ERR_USAGE, "are a vocabulary of 257, the model's is 256");
    refuse(write_file("tokens.bin", "abc", 3), 1000, 2, CB_ERR_FORMAT, "is no llm.c token file");
}

static void a_file_that_became_shorter_is_an_error(void **unused)
{
    (void)unused;
    const char *path = write_tokens(20240520, 1, 500, 500);
    struct train_data *data = open_data(path, 1000, 100, 0);
    uint32_t tokens[100], targets[100];
    struct cb_err err = {0};
    assert_int_equal(truncate(path, 1024), 0);
    assert_int_equal(train_data_sample(data, DATA_TRAINING, 0, tokens, targets, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "became shorter"));
    train_data_close(data);
}

static void text_is_bytes_and_an_end(void **unused)
{
    (void)unused;
    struct train_data *data = open_data(write_file("text.txt", "Hello\xff", 6), 257, 6, 0);
    uint32_t tokens[6], targets[6];
    assert_int_equal(train_data_samples(data, DATA_TRAINING), 1);
    assert_int_equal(train_data_sample(data, DATA_TRAINING, 0, tokens, targets, NULL), 0);
    assert_int_equal(tokens[0], 'H');
    assert_int_equal(tokens[5], 0xff);
    assert_int_equal(targets[0], 'e');
    assert_int_equal(targets[5], 256);
    train_data_close(data);
}

static void markov_samples_depend_on_their_number_alone(void **unused)
{
    (void)unused;
    struct train_data *a = open_data("markov", 100, 50, 0), *b = open_data("markov", 100, 50, 0);
    uint32_t tokens[2][50], targets[2][50];
    for (uint64_t sample = 20; sample-- > 0;) {
        assert_int_equal(train_data_sample(a, DATA_TRAINING, 19 - sample, tokens[0], targets[0], NULL), 0);
        assert_int_equal(train_data_sample(b, DATA_TRAINING, sample, tokens[1], targets[1], NULL), 0);
    }
    assert_int_equal(train_data_sample(a, DATA_TRAINING, 0, tokens[0], targets[0], NULL), 0);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
    for (int i = 0; i < 49; i++)
        assert_int_equal(targets[0][i], tokens[0][i + 1]);
    assert_int_equal(train_data_sample(a, DATA_VALIDATION, 0, tokens[1], targets[1], NULL), 0);
    assert_memory_not_equal(tokens[0], tokens[1], sizeof tokens[0]);
    train_data_close(a);
    train_data_close(b);
}

/* Of 8 branches, 1/2, 1/4, ... 2^-7 and 2^-7: ln 2 times 2 - 4 / 2^8 bits, the lowest loss that any model can reach. */
#define MARKOV_ENTROPY 1.375

/* How often each token follows each. */
static void markov_has_the_entropy_of_its_branches(void **unused)
{
    (void)unused;
    struct train_data *data = open_data("markov", 20, 1000, 0);
    static uint32_t pairs[20][20], tokens[1000], targets[1000];
    double entropy = 0, all = 0;
    for (uint64_t sample = 0; sample < 400; sample++) {
        assert_int_equal(train_data_sample(data, DATA_TRAINING, sample, tokens, targets, NULL), 0);
        for (int i = 0; i < 1000; i++)
            pairs[tokens[i]][targets[i]]++;
    }
    for (int a = 0; a < 20; a++) {
        double sum = 0;
        for (int b = 0; b < 20; b++)
            sum += pairs[a][b];
        for (int b = 0; b < 20; b++)
            if (pairs[a][b])
                entropy -= pairs[a][b] * log(pairs[a][b] / sum);
        all += sum;
    }
    assert_true(fabs(entropy / all - MARKOV_ENTROPY) < 0.01);
    train_data_close(data);
}

/* A small model must come well below what knowing the frequencies of tokens alone would give. */
static void a_model_learns_the_markov_chain(void **unused)
{
    (void)unused;
    struct train_setup setup = {.shape = {.layers = 1, .width = 32, .heads = 2, .positions = 16, .vocabulary = 32},
                                .batch = 16,
                                .sequence = 16,
                                .threads = 1};
    struct train_model *model = NULL;
    struct train_data *data = open_data("markov", 32, 16, 0);
    struct optimizer adamw = optimizer_default(OPTIMIZER_ADAMW);
    static uint32_t tokens[256], targets[256];
    float *memory[2];
    double first = 0, last = 0;
    assert_int_equal(train_model_new(&setup, &model, NULL), 0);
    for (size_t u = 0; u < 2; u++) {
        memory[u] = calloc(train_model_unit(model, u)->elements, 4 * sizeof(float));
        train_model_init(model, u, 0, train_model_unit(model, u)->elements, 1, memory[u]);
    }
    for (uint64_t step = 0; step < 150; step++) {
        for (uint64_t b = 0; b < 16; b++)
            assert_int_equal(
                train_data_sample(data, DATA_TRAINING, step * 16 + b, tokens + 16 * b, targets + 16 * b, NULL), 0);
        struct train_batch batch = {.step = step, .training = true, .tokens = tokens, .targets = targets};
        assert_int_equal(train_model_begin(model, &batch, NULL), 0);
        for (size_t s = 0; s < 3; s++)
            train_model_forward(model, s, memory[s % 2]);
        for (size_t u = 0; u < 2; u++)
            memset(memory[u] + train_model_unit(model, u)->elements, 0, train_model_unit(model, u)->elements * 4);
        for (size_t s = 3; s-- > 0;)
            train_model_backward(model, s, memory[s % 2], memory[s % 2] + train_model_unit(model, s % 2)->elements);
        for (size_t u = 0; u < 2; u++) {
            uint64_t n = train_model_unit(model, u)->elements;
            float *m = memory[u];
            struct optimizer_range range = {0, n, m, m + n, m + 2 * n, m + 3 * n};
            optimizer_step(&adamw, train_model_unit(model, u), &range, 1e-2, 1, step + 1, NULL);
        }
        last = train_model_loss(model);
        first = step == 0 ? last : first;
    }
    assert_true(fabs(first - log(32)) < 0.1);
    if (!(last < MARKOV_ENTROPY + 0.4 && last > MARKOV_ENTROPY - 0.3))
        fail_msg("after 150 steps the loss is %g, the source's entropy %g", last, MARKOV_ENTROPY);
    free(memory[0]);
    free(memory[1]);
    train_data_close(data);
    train_model_free(model);
}

/* A vocabulary by hand: all bytes as GPT-2 writes them, then some pairs. */
static void make_vocabulary(struct buf *vocab, struct buf *merges)
{
    unsigned next = 256, token = 0;
    buf_init(vocab, 1 << 20);
    buf_init(merges, 1 << 20);
    buf_append_text(vocab, "{");
    for (unsigned byte = 0; byte < 256; byte++) {
        bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        buf_printf(vocab, "\"\\u%04x\": %u, ", prints ? byte : next++, token++);
    }
    const char *const pairs[] = {"h e",         "l l",    "he ll", "\xc4\xa0 w",
                                 "\xc4\xa0w o", "hell o", "1 2",   "\xc4\xa0 \xc4\xa0"};
    buf_append_text(merges, "#version: 0.2\n");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *space = strchr(pairs[i], ' ');
        buf_printf(vocab, "\"%.*s%s\": %u, ", (int)(space - pairs[i]), pairs[i], space + 1, token++);
        buf_printf(merges, "%s\n", pairs[i]);
    }
    buf_printf(vocab, "\"<|endoftext|>\": %u}", token);
}

static struct tokenizer *make_tokenizer(void)
{
    struct buf vocab, merges;
    struct tokenizer *tokenizer = NULL;
    struct cb_err err = {0};
    make_vocabulary(&vocab, &merges);
    if (tokenizer_parse(vocab.data, vocab.len, merges.data, merges.len, &tokenizer, &err))
        fail_msg("%s", err.message);
    buf_release(&vocab);
    buf_release(&merges);
    return tokenizer;
}

static void expect_tokens(const struct tokenizer *tokenizer, const char *text, const uint16_t *expected, uint64_t count)
{
    uint16_t *tokens = NULL;
    uint64_t got = 0;
    assert_int_equal(tokenizer_encode(tokenizer, (const unsigned char *)text, strlen(text), &tokens, &got, NULL), 0);
    assert_int_equal(got, count);
    assert_memory_equal(tokens, expected, count * sizeof *tokens);
    free(tokens);
}

/* Numbers: bytes are their own numbers here, pairs begin at 256: he ll hell _w _wo hello 12 __ . */
static void pairs_join_in_the_order_of_merges(void **unused)
{
    (void)unused;
    struct tokenizer *tokenizer = make_tokenizer();
    assert_int_equal(tokenizer_vocabulary(tokenizer), 265);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 264);
    expect_tokens(tokenizer, "hello world", (uint16_t[]){261, 260, 'r', 'l', 'd'}, 5);
    expect_tokens(tokenizer, "helllo", (uint16_t[]){258, 'l', 'o'}, 3);
    expect_tokens(tokenizer, "1212a12", (uint16_t[]){262, 262, 'a', 262}, 4);
    expect_tokens(tokenizer, "<|endoftext|>",
                  (uint16_t[]){'<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'}, 13);
    expect_tokens(tokenizer, "a   b", (uint16_t[]){'a', 263, ' ', 'b'}, 4);
    tokenizer_free(tokenizer);
}

static void any_bytes_come_back_as_they_were(void **unused)
{
    (void)unused;
    struct tokenizer *tokenizer = make_tokenizer();
    unsigned char text[5000];
    uint64_t state = 7;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof text; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            text[i] = round % 2 ? (unsigned char)(state >> 56) : (unsigned char)"hello w12 \xc3\xa9'"[state >> 60 & 7];
        }
        uint16_t *tokens = NULL;
        uint64_t count = 0;
        struct buf back;
        buf_init(&back, 1 << 20);
        assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text, &tokens, &count, NULL), 0);
        assert_int_equal(tokenizer_decode(tokenizer, tokens, count, &back, NULL), 0);
        assert_int_equal(back.len, sizeof text);
        assert_memory_equal(back.data, text, sizeof text);
        buf_release(&back);
        free(tokens);
    }
    tokenizer_free(tokenizer);
}

static void expect_words(const char *text, const char *expected)
{
    char got[256] = "";
    size_t at = 0, len = strlen(text), used = 0;
    while (at < len) {
        uint64_t word = tokenizer_word((const unsigned char *)text + at, len - at);
        used += (size_t)snprintf(got + used, sizeof got - used, "[%.*s]", (int)word, text + at);
        at += word;
    }
    assert_string_equal(got, expected);
}

/* What GPT-2's published pattern gives. */
static void words_are_those_of_gpt2(void **unused)
{
    (void)unused;
    expect_words("Hello world", "[Hello][ world]");
    expect_words("I'll we've it's 'tis don't", "[I]['ll][ we]['ve][ it]['s][ '][tis][ don]['t]");
    expect_words("a  b\n\nc \n", "[a][ ][ b][\n][\n][c][ \n]");
    expect_words("x=12ab!!  ", "[x][=][12][ab][!!][  ]");
    expect_words("\xc3\xa9t\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xd9\xa3",
                 "[\xc3\xa9t\xc3\xa9][ \xe6\x97\xa5\xe6\x9c\xac][ \xd9\xa3]");
    expect_words("a\xc2\xa0\xc2\xa0z", "[a][\xc2\xa0][\xc2\xa0][z]");
}

static void refuse_vocabulary(const char *vocab, const char *merges, const char *says)
{
    struct tokenizer *tokenizer = NULL;
    struct cb_err err = {0};
    assert_int_equal(tokenizer_parse(vocab, strlen(vocab), merges, strlen(merges), &tokenizer, &err), CB_ERR_FORMAT);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
}

static void wrong_vocabularies_are_named(void **unused)
{
    (void)unused;
    struct buf vocab, merges;
    make_vocabulary(&vocab, &merges);
    refuse_vocabulary("[1]", "", "no object of tokens");
    refuse_vocabulary("{\"a\": \"b\"}", "", "\"a\" has no number below 65536");
    refuse_vocabulary("{\"a\": 70000}", "", "\"a\" has no number below 65536");
    refuse_vocabulary("{\"a\": 1, \"b\": 1}", "", "\"b\" is the second");
    refuse_vocabulary("{\"a\": 1}", "", "no token for the byte 0x00");
    refuse_vocabulary(vocab.data, "#version\nh e\nhe\n", "line 3: not two tokens");
    refuse_vocabulary(vocab.data, "h e\nx y\n", "line 2: vocab.json does not have these two tokens");
    refuse_vocabulary("{", "", "vocab.json: line 1");
    buf_release(&vocab);
    buf_release(&merges);
}

static void text_becomes_pairs_where_their_files_are_given(void **unused)
{
    (void)unused;
    struct buf vocab, merges;
    char vocab_path[128], merges_path[128];
    uint32_t tokens[5], targets[5];
    struct train_data *data = NULL;
    struct cb_err err = {0};
    make_vocabulary(&vocab, &merges);
    snprintf(vocab_path, sizeof vocab_path, "%s", write_file("vocab.json", vocab.data, vocab.len));
    snprintf(merges_path, sizeof merges_path, "%s", write_file("merges.txt", merges.data, merges.len));
    struct train_data_setup setup = {.source = write_file("text.txt", "hello world", 11),
                                     .vocab_json = vocab_path,
                                     .merges = merges_path,
                                     .vocabulary = 300,
                                     .sequence = 5};
    assert_int_equal(train_data_open(&setup, &data, &err), 0);
    assert_int_equal(train_data_sample(data, DATA_TRAINING, 0, tokens, targets, NULL), 0);
    assert_int_equal(tokens[0], 261);
    assert_int_equal(targets[4], 264);
    train_data_close(data);
    data = NULL;
    setup.vocabulary = 264;
    assert_int_equal(train_data_open(&setup, &data, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "a vocabulary of 265, the model one of 264"));
    setup.merges = "";
    assert_int_equal(train_data_open(&setup, &data, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "both vocab.json and merges.txt"));
    buf_release(&vocab);
    buf_release(&merges);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_files_are_read_in_windows),
        cmocka_unit_test(epochs_have_orders_of_their_own),
        cmocka_unit_test(files_that_are_not_token_files_are_refused_by_name),
        cmocka_unit_test(a_file_that_became_shorter_is_an_error),
        cmocka_unit_test(text_is_bytes_and_an_end),
        cmocka_unit_test(markov_samples_depend_on_their_number_alone),
        cmocka_unit_test(markov_has_the_entropy_of_its_branches),
        cmocka_unit_test(a_model_learns_the_markov_chain),
        cmocka_unit_test(pairs_join_in_the_order_of_merges),
        cmocka_unit_test(any_bytes_come_back_as_they_were),
        cmocka_unit_test(words_are_those_of_gpt2),
        cmocka_unit_test(wrong_vocabularies_are_named),
        cmocka_unit_test(text_becomes_pairs_where_their_files_are_given),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
