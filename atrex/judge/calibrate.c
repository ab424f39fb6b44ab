/* The two kernels of calibration: nothing at all, or one read and one write of a buffer. */
#include <stdint.h>
#include <string.h>

struct calibrate_args {
    const char *from;
    char *to;
    int64_t bytes; /* 0: return at once */
};

int run(const struct calibrate_args *args)
{
    if (args->bytes) memcpy(args->to, args->from, (size_t)args->bytes);
    return 0;
}
