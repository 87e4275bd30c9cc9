// What kernels that copy KV rows are given.
#pragma once

#include "kernels/types.cuh"

// Rows of one layer between pages and a list as the host keeps it: k, v: bf16 [rows][KV_WIDTH]. A
// thread owns an element of a row.
struct RowsPlace {
    const u32 *pages;      // of the list's rows, from the first on
    u32 n_rows, first_row; // the row of the first page that the list begins with
};
