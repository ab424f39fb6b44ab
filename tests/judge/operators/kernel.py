"""Scatter rows in C; tests change one line of it."""

OPERATOR = "scatter_rows"
BACKEND = "c"
SOURCE = r"""
#include "scatter_rows.h"

int run(const struct scatter_rows_args *args)
{
    const int64_t rows = args->x_shape[0], width = args->x_shape[1];
    for (int64_t r = 0; r < rows; r++) {
        const int64_t slot = args->slots[r];
        for (int64_t i = 0; i < width; i++)
            args->pool[slot * width + i] = args->x[r * width + i];
        args->order[rows - 1 - r] = (int32_t)r;
    }
    return 0;
}
"""
