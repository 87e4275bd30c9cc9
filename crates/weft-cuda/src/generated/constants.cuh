// What kernels and the host must agree on, for one model and one GPU.
// Emitted by constants.rs: do not edit.
#pragma once

#include "kernels/types.cuh"

// A model's sizes, and how its matrices are cut for the GPU (shape.rs).
constexpr int HIDDEN = 1024;
constexpr int HEADS = 16;
constexpr int KV_HEADS = 8;
constexpr int GROUP = 2;
constexpr int HEAD_DIM = 128;
constexpr int DIM = 128;
constexpr int INTER = 3072;
constexpr int VOCAB = 151936;
constexpr int Q_WIDTH = 2048;
constexpr int KV_WIDTH = 1024;
constexpr int QKV_ROWS = 4096;
constexpr int QK_NORM = 1;
constexpr int QKV_BIAS = 0;
constexpr int LAYERS = 28;
constexpr int N_BLOCKS = 132;
constexpr int BOTH_SIDES = 1;
constexpr int BLOCK_AT_ONCE = 2;
constexpr int BLOCK_STAGES = 6;
constexpr int LONGEST_STRIP = 12;
constexpr int SHORT_STRIP = 4;
constexpr int STRIP_BYTES = 18432;
constexpr int TWO_BLOCKS_UNITS = 4;
constexpr int TILED = 1;
constexpr int TILED_SHARED = 231424;
constexpr int TILED_THREADS = 384;
constexpr int SQUARE = 64;
constexpr int SEVERAL = 32;
constexpr int ATTENDS_TILED = 1;
constexpr int ATTEND_BLOCK_SHARED = 185344;
constexpr int LAID_BYTES = 32768;
constexpr int TILED_PAGES = 4;
constexpr int HIDDEN_STRIDE = 1024;
constexpr int HIDDEN_UNITS = 4;
constexpr int Q_STRIDE = 2048;
constexpr int Q_UNITS = 8;
constexpr int INTER_STRIDE = 3072;
constexpr int INTER_UNITS = 12;
#define HAS_EXPERTS 0
constexpr float NORM_EPS = 0x8637bdp-43f;
constexpr float SCALE_LOG2 = 0x8293eep-26f;

// How matrices are packed and multiplied (shape.rs, ops/).
constexpr int WARPS = 8;
constexpr int UNIT_BYTES = 512;
constexpr int READ_PIECE = 16384;
constexpr int PIECE_PAGES = 64;
constexpr int BLOCK_TOKENS = 128;
constexpr int BLOCK_ROWS = 128;
constexpr int BLOCK_STAGE = 32768;
constexpr int BLOCK_THREADS = 256;
constexpr int RING_THREADS = 288;

// The lists of a step (tables.rs), and attention (ops/attend.rs, buffers.rs).
constexpr int FEW = 8;
constexpr int PAGE_ROWS = 64;
constexpr int SECTION_PAGES = 4;
constexpr int TILE_QUERIES = 128;
constexpr int TILE_THREADS = 128;
constexpr int LAY_THREADS = 128;
constexpr int STORED_HEADS = 4;
constexpr int VALUE_TOKENS = 32;
constexpr int VALUE_THREADS = 128;
constexpr int SENT_ROW = 136;
constexpr u32 NO_CELL = 0xffffu;
constexpr u32 NOWHERE = 0xffffffffu;
constexpr u32 NOTHING = 0xffffffffu;

// Choosing tokens (sampling.rs).
constexpr int SCORE_ROWS = 16;
constexpr int N_BEST = 9496;
constexpr int MOST_RANKS = 128;
constexpr int WIDE_BLOCKS = 16;
constexpr int WIDE_THREADS = 512;
constexpr int MOST_WIDE_ROWS = 62;
constexpr int DIGITS = 256;
constexpr int MASK_WORDS = 4748;
constexpr int WEIGHT_BLOCKS = 32;
constexpr u32 PUBLISHED_STEPS = 64;
constexpr u32 REPORT_WORDS = 43;
constexpr u64 MASK_PATIENCE_NS = 200000000ull;
constexpr u32 DECLINED = 0xffffffffu;
constexpr u32 CHOSEN = 0x1u;
constexpr u32 DRAWN = 0x2u;
constexpr u32 ADJUSTED = 0x4u;
constexpr u32 FOLLOWED = 0x8u;
constexpr u32 WIDE = 0x10u;
constexpr u32 MASKED = 0x20u;
constexpr u32 REPORTED = 0x40u;
constexpr u32 RULED_OUT_EARLY = 0x40000000u;
constexpr u32 RULED_OUT = 0x80000000u;

// The persistent kernel (persistent/).
constexpr int PORTION_UNITS = 4;
constexpr int MOST_STAGES = 16;
constexpr int PERSISTENT_THREADS = 288;
constexpr int X_UNIT_BYTES = 64;
constexpr int LONG_STAGE_BYTES = 16384;
constexpr int CODED_STRIP = 0;
constexpr int BARE_BYTES = 491520;
constexpr u32 BARE_TOKENS = 8;
constexpr u32 WHOLE_TOKENS = 4;
constexpr u32 X_UNITS[8] = {32, 32, 36, 48, 32, 32, 32, 32};
constexpr u64 PATIENCE_NS = 2000000000ull;
constexpr u32 NOBODY = 0xffffffffu;
enum Chooses : u32 { CHOOSES_NOTHING = 0, CHOOSES_BEST = 1, CHOOSES_BY_DRAWS = 2 };
enum OpKind : u32 { EMBED = 0, NORM_QKV = 1, ROPE_STORE = 2, ATTEND = 3, PROJ_ADD = 4, NORM_GATE_UP = 5, DOWN_ADD = 6, NORM_HEAD = 7, NORM_ROUTE = 8, EXPERT_GATE_UP = 9, EXPERT_DOWN_ADD = 10 };
