// A model's matrices: the forms of their tiles, and how the host cut them.
// Emitted by matrices.rs: do not edit.
#pragma once

#include "kernels/coded.cuh"

struct QkvMatrix : OneForm<Plain> {
    static constexpr int TILES = 4, ALL_TILES = 512, STAGES = 4, OWN = 1, IN_FLIGHT = 2, CHAINS = 1, ID = 0, IS_LAST = 1;
};
static_assert(QkvMatrix::BYTES == 512, "units are as large as the host packs them");
#define QKV_MATRICES(X) X(, QkvMatrix)

struct ProjMatrix : OneForm<Plain> {
    static constexpr int TILES = 1, ALL_TILES = 128, STAGES = 1, OWN = 1, IN_FLIGHT = 1, CHAINS = 2, ID = 0, IS_LAST = 1;
};
static_assert(ProjMatrix::BYTES == 512, "units are as large as the host packs them");
#define PROJ_MATRICES(X) X(, ProjMatrix)

struct GateUpMatrix : OneForm<Plain> {
    static constexpr int TILES = 6, ALL_TILES = 768, STAGES = 6, OWN = 1, IN_FLIGHT = 2, CHAINS = 1, ID = 0, IS_LAST = 1;
};
static_assert(GateUpMatrix::BYTES == 512, "units are as large as the host packs them");
#define GATE_UP_MATRICES(X) X(, GateUpMatrix)

struct DownMatrix : OneForm<Plain> {
    static constexpr int TILES = 1, ALL_TILES = 128, STAGES = 1, OWN = 1, IN_FLIGHT = 1, CHAINS = 2, ID = 0, IS_LAST = 1;
};
static_assert(DownMatrix::BYTES == 512, "units are as large as the host packs them");
#define DOWN_MATRICES(X) X(, DownMatrix)

struct NormForms : OneForm<Plain> {
    static constexpr int ID = 0, IS_LAST = 1;
};
static_assert(NormForms::BYTES == 512, "units are as large as the host packs them");
#define NORM_FORMS(X) X(, NormForms)

#define QKV_BLOCK_MATRICES(X)
#define QKV_TILED_KERNELS(X) X(, QkvMatrix, 64) X(, QkvMatrix, 128) X(, QkvMatrix, 192)
#define PROJ_BLOCK_MATRICES(X)
#define PROJ_TILED_KERNELS(X) X(, ProjMatrix, 64) X(, ProjMatrix, 128) X(, ProjMatrix, 192)
#define GATE_UP_BLOCK_MATRICES(X)
#define GATE_UP_TILED_KERNELS(X) X(, GateUpMatrix, 64) X(, GateUpMatrix, 128) X(, GateUpMatrix, 192)
#define DOWN_BLOCK_MATRICES(X)
#define DOWN_TILED_KERNELS(X) X(, DownMatrix, 64) X(, DownMatrix, 128) X(, DownMatrix, 192)
struct HeadMatrix : OneForm<Plain> {
    static constexpr int TILES = 2, ALL_TILES = 18992, STAGES = 6, OWN = 72, IN_FLIGHT = 4, CHAINS = 1;
};
static_assert(HeadMatrix::BYTES == 512, "units are as large as the host packs them");
constexpr u32 HEAD_FORMS = 0;
using EmbeddingMatrix = OneForm<Plain>;
