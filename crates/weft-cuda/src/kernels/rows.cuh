// What kernels that copy KV rows are given.
#pragma once

#include "generated/constants.cuh"

// Rows of some layers between pages and a list as the host keeps it: k, v: bf16
// [layers][rows][KV_WIDTH]. A thread owns an element of a row of layer blockIdx.y.
//
// In 8 bits: k, v: [layers][rows][PACKED_ROW], a row's integers, then the scale of each head in bf16.
// A warp owns a head of a row of layer blockIdx.y.
constexpr u32 PACKED_ROW = KV_WIDTH + KV_HEADS * 2;

struct RowsPlace {
    u32 pages[PIECE_PAGES]; // of the list's rows, from the first on
    u32 n_rows, first_row; // the row of the first page that the list begins with
    u64 layer_bytes;       // from the pages of one layer to those of the next
};
