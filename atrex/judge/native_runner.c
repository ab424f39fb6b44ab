/* Runs a compiled kernel in a process that holds nothing else: no Python, no framework.
 *
 *   native_runner ACCESS        one letter for each arena: r (sealed input) or w
 *
 * Descriptor 3 is the channel to the judge, 4 and up are the arenas. The kernel is loaded when
 * the judge asks for it, when every limit is in force. Numbers and layouts are those of
 * channel.py; messages come from the judge and are trusted, the kernel is not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };
enum { CHANNEL = 3, FIRST_ARENA = 4, MESSAGE_BYTES = 80 << 10, MAX_ARENAS = 64 };
enum kind { HELLO, LOAD, PREPARE, BIND, ARM, GO, COLLECT, QUIT };
enum status { OK, FAILED, NO_MEMORY, STRUCTURE };
static const int64_t SPIN_NS = 1000000; /* GO follows ARM within microseconds, or not at all */

struct header {
    uint32_t kind, payload_bytes;
    uint64_t nonce, number;
};
struct record {
    uint64_t nonce, number;
    uint32_t kind, status, detail, reserved;
    uint64_t extra;
};
struct relocation {
    uint64_t at, arena, offset;
};
typedef int (*entry)(const void *);

static char message[MESSAGE_BYTES] __attribute__((aligned(64)));
static char block[MESSAGE_BYTES] __attribute__((aligned(64)));
static char *arenas[MAX_ARENAS];
static entry run, prepare;

/* Huge pages of the judge's mapping are shared only at a multiple of their size (mapping.py). */
static void *huge_aligned(size_t bytes)
{
    char *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) exit(72);
    return (void *)(((uintptr_t)room + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
}

static void map_arenas(const char *access)
{
    size_t count = strlen(access);
    if (count > MAX_ARENAS) exit(70);
    for (size_t i = 0; i < count; i++) {
        struct stat file;
        if (fstat(FIRST_ARENA + (int)i, &file) != 0) exit(71);
        int protection = access[i] == 'w' ? PROT_READ | PROT_WRITE : PROT_READ;
        arenas[i] = mmap(huge_aligned((size_t)file.st_size), (size_t)file.st_size, protection,
                         MAP_SHARED | MAP_FIXED | MAP_POPULATE, FIRST_ARENA + (int)i, 0);
        if (arenas[i] == MAP_FAILED) exit(72);
        close(FIRST_ARENA + (int)i);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Waits for the next message; `awake` spins first, so that the judge times no wake-up. */
static void receive(int awake)
{
    ssize_t got = -1;
    if (awake) {
        int64_t end = now_ns() + SPIN_NS;
        do got = recv(CHANNEL, message, sizeof message, MSG_DONTWAIT);
        while (got < 0 && errno == EAGAIN && now_ns() < end);
    }
    while (got < 0) {
        got = recv(CHANNEL, message, sizeof message, 0);
        if (got < 0 && errno != EINTR) _exit(73);
    }
    if (got < (ssize_t)sizeof(struct header)) _exit(0); /* the judge is gone */
}

static int load(const char *path)
{
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        fprintf(stderr, "%s\n", dlerror());
        return FAILED;
    }
    run = (entry)dlsym(object, "run");
    prepare = (entry)dlsym(object, "prepare");
    if (!run) fprintf(stderr, "the kernel defines no function `run`\n");
    return run ? OK : FAILED;
}

/* Payload: block bytes, number of relocations (both u64), the block, the relocations. */
static void bind_arguments(const char *payload)
{
    uint64_t sizes[2];
    memcpy(sizes, payload, sizeof sizes);
    payload += sizeof sizes;
    memcpy(block, payload, sizes[0]);
    payload += sizes[0];
    for (uint64_t i = 0; i < sizes[1]; i++, payload += sizeof(struct relocation)) {
        struct relocation place;
        memcpy(&place, payload, sizeof place);
        char *address = arenas[place.arena] + place.offset;
        memcpy(block + place.at, &address, sizeof address);
    }
}

static int handle(enum kind kind, const char *payload, int *code)
{
    switch (kind) {
    case LOAD:
        return load(payload);
    case PREPARE:
        bind_arguments(payload);
        *code = prepare ? prepare(block) : 0;
        return *code ? FAILED : OK;
    case BIND:
        bind_arguments(payload);
        return OK;
    case GO:
        *code = run(block);
        return *code ? FAILED : OK;
    default:
        return OK;
    }
}

int main(int count, char **arguments)
{
    if (count != 2) return 64;
    map_arenas(arguments[1]);
    struct record answer = {.kind = HELLO};
    for (;;) {
        if (write(CHANNEL, &answer, sizeof answer) != sizeof answer) return 0;
        receive(answer.kind == ARM);
        struct header header;
        memcpy(&header, message, sizeof header);
        if (header.kind == QUIT) return 0;
        /* A path is terminated by the zero that the judge sends with it. */
        int code = 0;
        int status = handle((enum kind)header.kind, message + sizeof header, &code);
        answer = (struct record){.nonce = header.nonce, .number = header.number,
                                 .kind = header.kind, .status = (uint32_t)status,
                                 .detail = (uint32_t)code};
    }
}
