// A model's experts: their sizes, their matrices, and how the host cut them.
// Emitted by experts.rs: do not edit.
#pragma once

#include "kernels/coded.cuh"

constexpr int EXPERTS = 128;
constexpr int N_CHOSEN = 8;
constexpr int NORMALISED = 1;
constexpr int EXPERT_INTER = 768;
constexpr int EXPERT_STRIDE = 768;
constexpr int EXPERT_UNITS = 3;
constexpr int EXPERT_INPUT_ROWS = 24;
constexpr int LAY_EXPERTS_THREADS = 1024;
struct RouterMatrix : OneForm<Plain> {
    static constexpr int TILES = 1, ALL_TILES = 16, STAGES = 1, OWN = 1, IN_FLIGHT = 1, CHAINS = 1;
};
#define ROUTER_BLOCK_MATRICES(X)
#define ROUTER_TILED_KERNELS(X) X(, RouterMatrix, 64)
struct ExpertGateUpMatrix : OneForm<Plain> {
    static constexpr int TILES = 2, ALL_TILES = 192, STAGES = 12, OWN = 65536, IN_FLIGHT = 4, CHAINS = 1, BLOCKS = 1, READERS = 8, EXPERT_BYTES = 3145728, ID = 0, IS_LAST = 1;
};
#define EXPERT_GATE_UP_MATRICES(X) X(, ExpertGateUpMatrix)
#define EXPERT_GATE_UP_BLOCK_MATRICES(X)
#define EXPERT_GATE_UP_TILED_KERNELS(X) X(, ExpertGateUpMatrix, 64) X(, ExpertGateUpMatrix, 128) X(, ExpertGateUpMatrix, 192)
struct ExpertDownMatrix : OneForm<Plain> {
    static constexpr int TILES = 1, ALL_TILES = 128, STAGES = 14, OWN = 65536, IN_FLIGHT = 6, CHAINS = 1, BLOCKS = 1, READERS = 8, EXPERT_BYTES = 1572864, ID = 0, IS_LAST = 1;
};
#define EXPERT_DOWN_MATRICES(X) X(, ExpertDownMatrix)
#define EXPERT_DOWN_BLOCK_MATRICES(X)
#define EXPERT_DOWN_TILED_KERNELS(X) X(, ExpertDownMatrix, 64) X(, ExpertDownMatrix, 128) X(, ExpertDownMatrix, 192)
