// What kernels that copy KV rows are given.
#pragma once

#include "generated/constants.cuh"

// Rows of some layers between pages and a list as the host keeps it: k, v: bf16
// [layers][rows][KV_WIDTH]. A thread owns an element of a row of layer blockIdx.y.
struct RowsPlace {
    u32 pages[PIECE_PAGES]; // of the list's rows, from the first on
    u32 n_rows, first_row; // the row of the first page that the list begins with
    u64 layer_bytes;       // from the pages of one layer to those of the next
};
