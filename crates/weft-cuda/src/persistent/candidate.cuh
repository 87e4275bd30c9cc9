// The best of many logits, as one number.

// A logit and its row as one number that is larger for the better: larger logits, then smaller rows. NaN is worse
// than all.
__device__ __forceinline__ u64 candidate(float logit, u32 row) {
    const u32 bits = __float_as_uint(logit), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)(logit == logit ? ordered : 0u) << 32 | (0xffffffffu - row);
}
__device__ __forceinline__ u32 candidate_row(u64 candidate) { return 0xffffffffu - (u32)candidate; }
// Of a block without rows; its highest bit of the row is set as that of any other.
constexpr u64 NO_CANDIDATE = 0x80000000ull;
__device__ __forceinline__ u64 better(u64 a, u64 b) { return a > b ? a : b; }
