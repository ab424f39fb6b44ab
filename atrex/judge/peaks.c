/* Measure what one core of this machine attains: arithmetic rates and memory bandwidth.

   usage: peaks CPU ROUNDS ARRAY_BYTES
   prints: "sample PIPE PATTERN WORK NANOSECONDS" for each sample and "round I" after each round.

   NAME_STREAMS_AHEAD in a pattern's name: sequences side by side, and lines asked for early.
   One of many patterns is the fastest on a given core (vector width, number of streams, kind of
   store), so all are tried and the reader takes the best. Rounds go over all patterns in turn:
   a disturbance of some milliseconds then costs each pattern one sample, not one pattern all. */

#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CHUNK_BYTES ((size_t)64 << 20) /* one memory sample: some 3 ms */
#define ARITHMETIC_NS 1e6              /* one arithmetic sample */
#define INLINE static inline __attribute__((always_inline))

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef double f64x2 __attribute__((vector_size(16)));
typedef double f64x4 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t line __attribute__((vector_size(64), aligned(64))); /* one cache line */

static volatile double sink; /* results end here, so that no loop can be left out */

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

/* --- arithmetic: each returns the operations of `steps` steps ------------------------------- */

/* Twelve independent chains hide the latency of the multiply-add. They are named, not an array:
   compilers keep an array of vectors in memory. */
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define CHAINS 12

/* The empty assembler statement keeps each chain in its register and in order. */
#if defined(__x86_64__)
#define CONSTRAINT(value) "+v"(value)
#else
#define CONSTRAINT(value) "+w"(value)
#endif

#define KEEP(i) __asm__ volatile("" : CONSTRAINT(chain##i));

/* The map x -> 0.5 x + 0.25 has a finite fixed point: no chain leaves the normal numbers. */
#define START(i) vector chain##i = half * (scalar)(i + 1);
#define MULTIPLY_ADD(i) chain##i = chain##i * half + quarter; KEEP(i)
#define TAKE(i) sink += chain##i[0];
#define MULTIPLY_ADDS(NAME, VECTOR, SCALAR)                                                    \
    static double NAME(long steps) {                                                           \
        typedef VECTOR vector;                                                                 \
        typedef SCALAR scalar;                                                                 \
        vector half = (vector){0} + (scalar)0.5, quarter = (vector){0} + (scalar)0.25;         \
        EACH(START)                                                                            \
        for (long step = 0; step < steps; step++) { EACH(MULTIPLY_ADD) }                       \
        EACH(TAKE)                                                                             \
        return 2.0 * (sizeof(vector) / sizeof(scalar)) * CHAINS * steps;                       \
    }

MULTIPLY_ADDS(fp32_16byte, f32x4, float)
MULTIPLY_ADDS(fp64_16byte, f64x2, double)
#if defined(__AVX__)
MULTIPLY_ADDS(fp32_32byte, f32x8, float)
MULTIPLY_ADDS(fp64_32byte, f64x4, double)
#endif
#if defined(__AVX512F__)
MULTIPLY_ADDS(fp32_64byte, f32x16, float)
MULTIPLY_ADDS(fp64_64byte, f64x8, double)
#endif

/* One instruction that multiplies narrow operands; OPERATIONS are those of one execution. */
#define NARROW_START(i) vector chain##i = first;
#define NARROW_STEP(i) chain##i = step_of(chain##i); KEEP(i)
#define NARROW_TAKE(i) sink += *(const char *)&chain##i;
#define NARROW(NAME, VECTOR, FIRST, OPERATIONS)                                                \
    static double NAME(long steps) {                                                           \
        typedef VECTOR vector;                                                                 \
        vector first = FIRST;                                                                  \
        EACH(NARROW_START)                                                                     \
        for (long step = 0; step < steps; step++) { EACH(NARROW_STEP) }                        \
        EACH(NARROW_TAKE)                                                                      \
        return (double)(OPERATIONS) * CHAINS * steps;                                          \
    }

#if defined(__AVX512BF16__)
#define step_of(chain) _mm512_dpbf16_ps(chain, (__m512bh)ones, (__m512bh)ones)
static const __m512i ones = {0x3f803f803f803f80, 0x3f803f803f803f80, 0x3f803f803f803f80,
                             0x3f803f803f803f80, 0x3f803f803f803f80, 0x3f803f803f803f80,
                             0x3f803f803f803f80, 0x3f803f803f803f80};
NARROW(bf16_dot, __m512, _mm512_set1_ps(1), 16 * 2 * 2)
#undef step_of
#endif
#if defined(__AVX512FP16__)
#define step_of(chain) _mm512_fmadd_ph(chain, _mm512_set1_ph(0.5f), _mm512_set1_ph(0.25f))
NARROW(fp16_fma, __m512h, _mm512_set1_ph(1), 32 * 2)
#undef step_of
#endif
#if defined(__AVX512VNNI__)
#define step_of(chain) _mm512_dpbusd_epi32(chain, _mm512_set1_epi8(3), _mm512_set1_epi8(5))
NARROW(int8_dot, __m512i, _mm512_set1_epi32(1), 16 * 4 * 2)
#undef step_of
#elif defined(__AVXVNNI__)
#define step_of(chain) _mm256_dpbusd_avx_epi32(chain, _mm256_set1_epi8(3), _mm256_set1_epi8(5))
NARROW(int8_dot, __m256i, _mm256_set1_epi32(1), 8 * 4 * 2)
#undef step_of
#endif

/* --- memory: each touches one chunk of its arrays and returns the bytes moved ---------------- */

#define LINES (CHUNK_BYTES / sizeof(line))

/* Store past the caches where there is such a store: it does not read the line it overwrites. */
INLINE void stream_line(line *to, line value) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)to, (__m512i)value);
#elif defined(__x86_64__)
    for (int part = 0; part < 4; part++)
        _mm_stream_si128((__m128i *)to + part, ((const __m128i *)&value)[part]);
#else
    *to = value;
#endif
}

/* Streamed stores are no longer on their way when the clock is read. */
INLINE void drain(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Read or copy the chunk as `streams` sequences side by side, asking for lines `ahead` lines
   early: hardware prefetchers follow each sequence on its own, and a few of each are in flight. */
INLINE double read_streams(const char *from, int streams, int ahead) {
    size_t length = LINES / streams, block = 8 / streams;
    line sum[8] = {{0}};
    for (size_t at = 0; at < length; at += block) {
        for (int stream = 0; stream < streams; stream++) {
            const line *place = (const line *)from + stream * length + at;
            for (size_t next = 0; next < block; next++) {
                if (ahead) __builtin_prefetch(place + next + ahead, 0, 3);
                sum[stream * block + next] += place[next];
            }
        }
    }
    for (int i = 0; i < 8; i++) sink += sum[i][0];
    return CHUNK_BYTES;
}

INLINE double copy_streams(char *to, const char *from, int streams, int ahead) {
    size_t length = LINES / streams, block = 4;
    for (size_t at = 0; at < length; at += block) {
        for (int stream = 0; stream < streams; stream++) {
            const line *place = (const line *)from + stream * length + at;
            line *target = (line *)to + stream * length + at;
            for (size_t next = 0; next < block; next++) {
                if (ahead) __builtin_prefetch(place + next + ahead, 0, 0);
                stream_line(target + next, place[next]);
            }
        }
    }
    drain();
    return 2.0 * CHUNK_BYTES;
}

/* Every transfer has the same arguments, three chunks of which it may use fewer. */
#define TRANSFER(NAME) static double NAME(char *a, char *b, char *c)
#define UNUSED(array) (void)array

#define READ(STREAMS, AHEAD)                                                                   \
    TRANSFER(read_##STREAMS##_##AHEAD) {                                                       \
        UNUSED(b), UNUSED(c);                                                                  \
        return read_streams(a, STREAMS, AHEAD);                                                \
    }
#define COPY(STREAMS, AHEAD)                                                                   \
    TRANSFER(copy_##STREAMS##_##AHEAD) {                                                       \
        UNUSED(c);                                                                             \
        return copy_streams(a, b, STREAMS, AHEAD);                                             \
    }
#define READS(DO) DO(1, 0) DO(1, 64) DO(2, 0) DO(2, 32) DO(4, 0) DO(8, 16)
#define COPIES(DO) DO(1, 0) DO(1, 16) DO(1, 256) DO(2, 0) DO(2, 32) DO(4, 0) DO(4, 16)
READS(READ)
COPIES(COPY)

TRANSFER(copy_cached) {
    UNUSED(c);
    for (size_t at = 0; at < LINES; at++) {
        ((line *)a)[at] = ((const line *)b)[at];
        __asm__ volatile("" ::: "memory"); /* or the loop becomes a call of memcpy */
    }
    return 2.0 * CHUNK_BYTES;
}

TRANSFER(copy_library) {
    UNUSED(c);
    memcpy(a, b, CHUNK_BYTES);
    return 2.0 * CHUNK_BYTES;
}

TRANSFER(write_library) {
    UNUSED(b), UNUSED(c);
    memset(a, 1, CHUNK_BYTES);
    return CHUNK_BYTES;
}

/* What is written must not be zero: some cores move a line of zeros in a third of the time
   (seen: 79 against 26 GB/s), which no kernel with a result can use. */
TRANSFER(write_streamed) {
    UNUSED(b), UNUSED(c);
    for (size_t at = 0; at < LINES; at++) stream_line((line *)a + at, (line){0} + (long)(at + 1));
    drain();
    return CHUNK_BYTES;
}

TRANSFER(triad_cached) {
    const f32x16 *left = (const f32x16 *)b, *right = (const f32x16 *)c;
    for (size_t at = 0; at < LINES; at++) ((f32x16 *)a)[at] = left[at] + right[at] * 0.5f;
    return 3.0 * CHUNK_BYTES;
}

TRANSFER(triad_streamed) {
    const f32x16 *left = (const f32x16 *)b, *right = (const f32x16 *)c;
    for (size_t at = 0; at < LINES; at++) {
        __builtin_prefetch(left + at + 16, 0, 0);
        __builtin_prefetch(right + at + 16, 0, 0);
        stream_line((line *)a + at, (line)(left[at] + right[at] * 0.5f));
    }
    drain();
    return 3.0 * CHUNK_BYTES;
}

/* --- the program ----------------------------------------------------------------------------- */

static const struct arithmetic {
    const char *pipe, *pattern;
    double (*run)(long steps);
} arithmetics[] = {
    {"fp32", "fma_16byte", fp32_16byte},
    {"fp64", "fma_16byte", fp64_16byte},
#if defined(__AVX__)
    {"fp32", "fma_32byte", fp32_32byte},
    {"fp64", "fma_32byte", fp64_32byte},
#endif
#if defined(__AVX512F__)
    {"fp32", "fma_64byte", fp32_64byte},
    {"fp64", "fma_64byte", fp64_64byte},
#endif
#if defined(__AVX512BF16__)
    {"bf16", "dot_64byte", bf16_dot},
#endif
#if defined(__AVX512FP16__)
    {"fp16", "fma_64byte", fp16_fma},
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    {"int8", "dot", int8_dot},
#endif
};

static const struct transfer {
    const char *pattern;
    double (*run)(char *a, char *b, char *c);
} transfers[] = {
#define ROW(NAME) {#NAME, NAME},
#define READ_ROW(STREAMS, AHEAD) ROW(read_##STREAMS##_##AHEAD)
#define COPY_ROW(STREAMS, AHEAD) ROW(copy_##STREAMS##_##AHEAD)
    READS(READ_ROW) COPIES(COPY_ROW) ROW(copy_cached) ROW(copy_library) ROW(write_library)
    ROW(write_streamed) ROW(triad_cached) ROW(triad_streamed)
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char *map(size_t bytes) {
    char *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
        perror("peaks: mmap");
        exit(1);
    }
#if defined(MADV_HUGEPAGE)
    madvise(region, bytes, MADV_HUGEPAGE); /* the roof must not be that of the address tables */
#endif
    memset(region, 1, bytes);
    return region;
}

/* Warm the core up and return the steps that fill one sample. */
static long steps_of(const struct arithmetic *one) {
    long steps = 1 << 12;
    for (;;) {
        double begin = now_ns();
        one->run(steps);
        double taken = now_ns() - begin;
        if (taken > ARITHMETIC_NS / 2) return (long)(steps * (ARITHMETIC_NS / taken));
        steps *= 2;
    }
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "usage: peaks CPU ROUNDS ARRAY_BYTES\n"), 2;
    int cpu = atoi(arguments[1]), rounds = atoi(arguments[2]);
    size_t bytes = strtoull(arguments[3], NULL, 10) / CHUNK_BYTES * CHUNK_BYTES;
    if (bytes < CHUNK_BYTES) bytes = CHUNK_BYTES;

    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) return perror("peaks: sched_setaffinity"), 1;

    char *a = map(bytes), *b = map(bytes), *c = map(bytes);
    long steps[COUNT(arithmetics)];
    for (size_t i = 0; i < COUNT(arithmetics); i++) steps[i] = steps_of(&arithmetics[i]);

    size_t offset = 0; /* moves on with every sample, so that no chunk is still in a cache */
    for (int round = 1; round <= rounds; round++) {
        for (size_t i = 0; i < COUNT(arithmetics); i++) {
            double begin = now_ns(), work = arithmetics[i].run(steps[i]);
            double taken = now_ns() - begin;
            printf("sample %s %s %.0f %.0f\n", arithmetics[i].pipe, arithmetics[i].pattern, work,
                   taken);
        }
        for (size_t i = 0; i < COUNT(transfers); i++) {
            double begin = now_ns(), work = transfers[i].run(a + offset, b + offset, c + offset);
            double taken = now_ns() - begin;
            printf("sample memory %s %.0f %.0f\n", transfers[i].pattern, work, taken);
            offset = (offset + CHUNK_BYTES) % bytes;
        }
        printf("round %d\n", round);
        fflush(stdout);
    }
    return 0;
}
