// The lists of routes that the host knows too: which experts tokens use, and the same sorted by
// expert.
#pragma once

#include "kernels/types.cuh"

// An expert of a token.
struct Route {
    u32 expert;
    float weight;
};

// Where the routes of tokens come from: from the router's logits, or from memory if another kernel
// has chosen.
struct RouteSource {
    const float *logits; // f32 [tokens][EXPERTS], or null
    const Route *routes; // [tokens][N_CHOSEN]
};

// Positions of one expert that a block multiplies at once.
struct ExpertTile {
    u32 expert, first, end, unused; // `end` is that of all the expert's positions
};

// Routes sorted by expert (sorted.cuh).
struct Sorted {
    u32 *counts;       // [EXPERTS]: how many tokens use an expert, while they are counted; zero between
    u32 *slots;        // [tokens][N_CHOSEN]: which of its expert's routes a route is, in any order
    u32 *starts;       // [EXPERTS]: the first position
    u32 *sources;      // [positions]: token * N_CHOSEN + which of its routes
    u32 *totals;       // positions, tiles
    ExpertTile *tiles; // [tiles]
};
