// What kernels of `attend` share.
#pragma once

#include "kernels/section.cuh"

// A section of one span of a lane, as its tokens see it. Rows are counted from row 0 of the
// first page.
struct SectionHead {
    u32 pages[SECTION_PAGES];
    u32 position; // of row `first`
    u32 home;     // the position that its key was rotated for
    u16 n_rows;
    u16 first;    // rows before it are not the section's
    u16 n_marks;
    u16 cell;     // the first of its cells, of those of the lane
};
struct Section : SectionHead {
    u32 marks[SECTION_PAGES * 2]; // a bit for each row: whether a stretch begins there
};
// Consecutive tokens of one lane; 32 bytes.
struct QueryTile {
    u32 first_token, n_tokens;
    u32 first_section, n_sections; // those that its last token sees
    u32 cell, n_cells;             // where the shares of its last token go, or NOWHERE
    u32 gap[2];
};
// Where results go.
struct Attended {
    u16 *a;         // bf16 [tokens][Q_STRIDE]; of attend_block also in squares (tiled.cuh)
    float *sent;    // f32 [partials][HEADS][SENT_ROW]: parts that blocks of one launch hand to one another (sent.cuh)
    float *sent_cells; // f32 [cells][HEADS][2]: cells that they do
    float *sums;    // f32 [partials][HEADS][DIM]: weighted sums of values, for attend_fold
    float2 *weights; // f32 [partials][HEADS]: pivot and sum of weights
    float2 *cells;  // f32 [cells][HEADS]: pivot and sum of the weights' squares, of attend_block
    float *shares;  // f32 [cells][HEADS]: squared probabilities of each cell's rows, added over layers
};

// Of what must be ready before scores a warp makes one or two of an item's 16 queries, and one of
// the rows that the step adds to the section. The last warps make new rows: the first ones have
// queries where there are few.
__device__ __forceinline__ int own_store() { return WARPS - 1 - threadIdx.x / 32; }
