// Forms of weights: how a unit of 8 rows x 32 columns is stored, and what it adds to sums.
//
// A coded unit has its codes, its scales and its offsets in one piece. Lane 4g + c holds codes of
// columns 8c .. 8c + 7 of row g, as `mma32` wants them. The products of a run of 32 columns, or of
// 16, are summed from zero; then sum = scale * run + sum, rounded once, and the same with the
// minimum and the sum of the input over the run. Every kernel adds runs by `add_unit`, so all give
// the same bits.
#pragma once

#include "kernels/base.cuh"

enum Codes { BITS, TABLE, INT8, UINT8, FP8 };
enum Numbers { BF16, F16, F32 };
enum Offsets { NO_OFFSET, ZERO, MINIMUM };

struct Plain {
    static constexpr bool IS_PLAIN = true, HAS_OFFSET = false;
    static constexpr int BYTES = UNIT_BYTES, RUNS = 1;
};

// A table's 16 numbers: their lower bytes, and their upper bytes.
template <u32 L0_, u32 L1_, u32 L2_, u32 L3_, u32 H0_, u32 H1_, u32 H2_, u32 H3_> struct Table {
    static constexpr u32 L0 = L0_, L1 = L1_, L2 = L2_, L3 = L3_, H0 = H0_, H1 = H1_, H2 = H2_, H3 = H3_;
};
using NoTable = Table<0, 0, 0, 0, 0, 0, 0, 0>;

// Bytes of one number of each row and run.
constexpr int number_bytes(Numbers kind, int runs) { return (kind == F32 ? 32 : 16) * runs; }

// Codes of BITS bits, less than MIDDLE below zero; RUNS of a unit. It lies as `units.rs` packs it:
// codes, or most bits of each and then their other bits; the scales of a row's runs, each with its
// minimum where there are minimums, row after row; zeros; up to 16 bytes of nothing.
template <Codes CODES_, int N_BITS_, int MIDDLE_, int RUNS_, Numbers SCALE_, Offsets OFFSET_, class Table_> struct Coded {
    using Table = Table_;
    static constexpr Codes CODES = CODES_;
    static constexpr Numbers SCALE = SCALE_;
    static constexpr Offsets OFFSET = OFFSET_;
    static constexpr bool IS_PLAIN = false, HAS_OFFSET = OFFSET != NO_OFFSET;
    static constexpr int N_BITS = N_BITS_, MIDDLE = MIDDLE_, RUNS = RUNS_;
    static constexpr int LOW_BYTES = N_BITS == 8 ? 256 : 128;
    static constexpr int SCALES = LOW_BYTES + (N_BITS == 8 ? 0 : (N_BITS - 4) * 32);
    static constexpr int PER_ROW = OFFSET == MINIMUM ? 2 : 1; // numbers of a row and run
    static constexpr int ZEROS = SCALES + number_bytes(SCALE, RUNS) * PER_ROW;
    static constexpr int END = ZEROS + (OFFSET == ZERO ? 8 * RUNS : 0);
    static constexpr int BYTES = (END + 15) / 16 * 16;
    // Codes come out so much smaller, and scales so much larger: a power of two, which no sum
    // rounds. Scales that are f32 are stored larger.
    static constexpr bool IS_SMALL = CODES == INT8 || CODES == UINT8 || CODES == BITS && N_BITS != 5, IS_STORED_LARGER = IS_SMALL && SCALE == F32;
    static constexpr float FACTOR = IS_SMALL ? 64.0f : 1.0f;
};

// ---- codes -------------------------------------------------------------------------------------
constexpr u32 ONES = 0x3f803f80u;
__device__ __forceinline__ uint4 all_ones() { return make_uint4(ONES, ONES, ONES, ONES); }
// The lower eight bits of a bf16 as a number: an integer times 2^-133, however large it is. So one
// multiplication makes numbers of codes where they are, those in the upper four bits too.
constexpr u32 TIMES_2_127 = 0x7f007f00u, TIMES_2_125 = 0x7e007e00u, TIMES_2_123 = 0x7d007d00u;
// -n / 64, for the n that there are.
constexpr u32 minus_64th(int n) { return (n == 0 ? 0x8000u : n == 8 ? 0xbe00u : n == 32 ? 0xbf00u : 0xc000u) * 0x10001u; }
// A bf16 of 128 to 255 has an integer's lower seven bits in its lower seven. Two of them.
constexpr u32 AND_128 = 0x43004300u;
constexpr u32 minus(int from_128_on) { return (0xc300u | (u32)(from_128_on - 128)) * 0x10001u; }

// Codes of 4 to 6 bits: even columns in the lower half of a word, odd ones in the upper.
template <class F> __device__ __forceinline__ uint4 unpack_bits(const u8 *unit, int lane) {
    const u32 low = ((const u32 *)unit)[lane];
    if constexpr (F::N_BITS == 4) {
        static_assert(F::MIDDLE == 0 || F::MIDDLE == 8, "the middle of four bits");
        const auto lower = [](u32 codes) { return fma_pair(codes & 0x000f000fu, TIMES_2_127, minus_64th(F::MIDDLE)); };
        const auto upper = [](u32 codes) { return fma_pair(codes & 0x00f000f0u, TIMES_2_123, minus_64th(F::MIDDLE)); };
        return make_uint4(lower(low), upper(low), lower(low >> 8), upper(low >> 8));
    }
    if constexpr (F::N_BITS == 6) {
        // Half a word has two codes and four bits of the last, its byte a code and the other two.
        static_assert(F::MIDDLE == 0 || F::MIDDLE == 32, "the middle of six bits");
        const u32 high = __byte_perm(((const u16 *)(unit + F::LOW_BYTES))[lane], 0, 0x4140);
        const auto number = [](u32 codes, u32 times) { return fma_pair(codes, times, minus_64th(F::MIDDLE)); };
        return make_uint4(number(low & 0x003f003fu, TIMES_2_127), number(low >> 4 & 0x00fc00fcu, TIMES_2_125), number(high & 0x003f003fu, TIMES_2_127),
                          number(and_or(low >> 10, 0x003c003cu, high & 0x00c000c0u), TIMES_2_125));
    }
    u32 high = unit[F::LOW_BYTES + lane];
    high |= high << 12;
    const auto pair = [&](int p) {
        const u32 code = and_or(high << (4 - p), 0x00100010u, and_or(low >> (p * 4), 0x000f000fu, AND_128));
        return fma_pair(code, ONES, minus(128 + F::MIDDLE));
    };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
}

// Four codes of a table, each in half a byte: their bf16 as lower bytes and upper bytes.
template <class T> __device__ __forceinline__ uint2 look_up(u32 codes) {
    const u32 seven = codes & 0x7777u, upper = __byte_perm(0xff00u, 0, codes >> 3 & 0x1111u);
    const auto choose = [&](u32 a, u32 b, u32 c, u32 d) { return __byte_perm(a, b, seven) & ~upper | __byte_perm(c, d, seven) & upper; };
    return make_uint2(choose(T::L0, T::L1, T::L2, T::L3), choose(T::H0, T::H1, T::H2, T::H3));
}
template <class F> __device__ __forceinline__ uint4 unpack_table(const u8 *unit, int lane) {
    const u32 codes = ((const u32 *)unit)[lane];
    const uint2 even = look_up<typename F::Table>(codes), odd = look_up<typename F::Table>(codes >> 16);
    const u32 evens[2] = {__byte_perm(even.x, even.y, 0x5140), __byte_perm(even.x, even.y, 0x7362)};
    const u32 odds[2] = {__byte_perm(odd.x, odd.y, 0x5140), __byte_perm(odd.x, odd.y, 0x7362)};
    return make_uint4(__byte_perm(evens[0], odds[0], 0x5410), __byte_perm(evens[0], odds[0], 0x7632),
                      __byte_perm(evens[1], odds[1], 0x5410), __byte_perm(evens[1], odds[1], 0x7632));
}

// The lower bytes of both halves of a word. Integers are stored with a sign.
template <class F> __device__ __forceinline__ u32 unpack_bytes(u32 word) {
    if constexpr (F::CODES == FP8) return fma_pair(word << 4 & 0x07f007f0u | word << 8 & 0x80008000u, 0x7b807b80u, 0x80008000u); // times 2^120
    return fma_pair(and_xor(word, 0x00ff00ffu, 0x00800080u), TIMES_2_127, minus_64th(F::CODES == UINT8 ? 0 : 128));
}

// What a lane's eight codes stand for, as bf16, divided by the form's FACTOR.
template <class F> __device__ __forceinline__ uint4 unpack(const u8 *unit, int lane) {
    if constexpr (F::IS_PLAIN) return ((const uint4 *)unit)[lane];
    else if constexpr (F::CODES == BITS) return unpack_bits<F>(unit, lane);
    else if constexpr (F::CODES == TABLE) return unpack_table<F>(unit, lane);
    else {
        const uint2 codes = ((const uint2 *)unit)[lane];
        return make_uint4(unpack_bytes<F>(codes.x), unpack_bytes<F>(codes.x >> 8), unpack_bytes<F>(codes.y), unpack_bytes<F>(codes.y >> 8));
    }
}

// ---- scales and offsets ------------------------------------------------------------------------
// A byte with a sign as a number. 2^23 and more has an integer in its lower bits; converting takes
// longer.
__device__ __forceinline__ float signed_byte(u32 byte) { return __uint_as_float(byte ^ 0x4b000080u) - 8388736.0f; }
// The scale of a row in a run, times FACTOR, and its minimum. A zero counts as the minimum
// -scale * zero.
struct RowNumbers {
    float scale, minimum;
};
// The numbers of all runs of a row are one load.
template <class F> struct AllRuns {
    RowNumbers of[F::RUNS];
    __device__ __forceinline__ AllRuns() {}
    __device__ __forceinline__ AllRuns(const u8 *unit, int row) {
        constexpr int N = F::RUNS * F::PER_ROW, BYTES = N * (F::SCALE == F32 ? 4 : 2);
        static_assert(BYTES <= 16 && F::SCALES % 16 == 0, "one load");
        u32 words[4] = {};
        const u8 *from = unit + F::SCALES + row * BYTES;
        if constexpr (BYTES == 2) words[0] = *(const u16 *)from;
        if constexpr (BYTES == 4) words[0] = *(const u32 *)from;
        if constexpr (BYTES == 8) words[0] = ((const uint2 *)from)->x, words[1] = ((const uint2 *)from)->y;
        if constexpr (BYTES == 16) words[0] = ((const uint4 *)from)->x, words[1] = ((const uint4 *)from)->y, words[2] = ((const uint4 *)from)->z, words[3] = ((const uint4 *)from)->w;
        const auto number = [&](int i) INLINED {
            if constexpr (F::SCALE == F32) return __uint_as_float(words[i]);
            const u16 bits = (u16)(words[i / 2] >> i % 2 * 16);
            return F::SCALE == F16 ? half_to_float(bits) : widen(bits);
        };
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) {
            RowNumbers &found = of[run];
            found = {number(run * F::PER_ROW), F::PER_ROW == 2 ? number(run * F::PER_ROW + 1) : 0.0f};
            if constexpr (F::OFFSET == ZERO) {
                const float zero = signed_byte(unit[F::ZEROS + row * F::RUNS + run]);
                found.minimum = __fmul_rn(-found.scale, F::IS_STORED_LARGER ? zero / F::FACTOR : zero);
            }
            if constexpr (F::IS_SMALL && !F::IS_STORED_LARGER) found.scale = __fmul_rn(found.scale, F::FACTOR);
        }
    }
};
template <class F> __device__ __forceinline__ RowNumbers row_numbers(const u8 *unit, int run, int row) {
    const AllRuns<F> all(unit, row);
    return run == 0 ? all.of[0] : all.of[F::RUNS - 1];
}

// ---- products ----------------------------------------------------------------------------------
// A unit of the input of up to 16 tokens, which are the rows of a product: what each run of the
// weights meets, and its sums.
template <class F> struct UnitInput {
    Interleaved runs[F::RUNS];
    float sums[F::RUNS][4];
    __device__ __forceinline__ UnitInput(const Interleaved &x, int lane) {
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) {
            runs[run] = x;
            // A run of 16 columns is that of two lanes of a quad.
            if (F::RUNS > 1 && lane % 4 / 2 != run)
#pragma unroll
                for (int i = 0; i < 8; ++i) runs[run].of[i] = 0;
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[run][e] = 0.0f;
            if (F::HAS_OFFSET) mma32(sums[run], runs[run], all_ones());
        }
    }
};

// Adds the products of some rows of input with a unit of weights: those of tokens g and g + 8 with
// rows 2c and 2c + 1, in lane 4g + c. Tokens from 8 on only with SECOND.
template <class F, bool SECOND> __device__ __forceinline__ void add_unit(float (&sum)[4], const UnitInput<F> &x, const u8 *unit, uint4 codes, int lane) {
    if constexpr (F::IS_PLAIN) return mma32(sum, x.runs[0], codes);
    else {
        const AllRuns<F> rows[2] = {{unit, lane % 4 * 2}, {unit, lane % 4 * 2 + 1}};
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) {
            float of_run[4] = {};
            mma32(of_run, x.runs[run], codes);
#pragma unroll
            for (int e = 0; e < (SECOND ? 4 : 2); ++e) sum[e] = __fmaf_rn(rows[e % 2].of[run].scale, of_run[e], sum[e]);
            if constexpr (F::HAS_OFFSET)
#pragma unroll
                for (int e = 0; e < (SECOND ? 4 : 2); ++e) sum[e] = __fmaf_rn(rows[e % 2].of[run].minimum, x.sums[run][e], sum[e]);
        }
    }
}
template <class F, bool SECOND> __device__ __forceinline__ void add_unit(float (&sum)[4], const UnitInput<F> &x, const u8 *unit, int lane) {
    add_unit<F, SECOND>(sum, x, unit, unpack<F>(unit, lane), lane);
}

// A unit of the input of up to 8 tokens where they are the columns of a product. Of ONE token, whose
// input all lanes of a column of a quad hold, even columns are the first of two runs and odd ones the
// second: one product has both.
template <class F, bool ONE> struct ColumnInput {
    static constexpr int N = ONE ? 1 : F::RUNS;
    uint4 runs[N];
    float sums[N][4];
    __device__ __forceinline__ ColumnInput(uint4 x, int lane) {
#pragma unroll
        for (int i = 0; i < N; ++i) runs[i] = F::RUNS > 1 && lane % 4 / 2 != (ONE ? lane / 4 % 2 : i) ? make_uint4(0, 0, 0, 0) : x;
    }
    __device__ __forceinline__ ColumnInput(uint4 x, int lane, u32 zero) : ColumnInput(x, lane) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][e] = 0.0f;
            if (F::HAS_OFFSET) mma32(sums[i], Interleaved(all_ones(), all_ones(), zero), runs[i]);
        }
    }
    // With sums of ONE token's runs that are known.
    __device__ __forceinline__ ColumnInput(uint4 x, int lane, const float *of_runs) : ColumnInput(x, lane) {
        static_assert(ONE, "sums of one token");
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) sums[0][run] = sums[0][2 + run] = of_runs[run];
    }
};
// Sums of a token's input over the runs of `n` units from `x` on, each of 64 bytes, run after run: eight
// units are the columns of one product.
template <class F> __device__ __forceinline__ void sum_input_runs(float *sums, const uint4 *x, int n, int lane, u32 zero) {
#pragma unroll 1
    for (int first = 0; first < n; first += 8) {
        const uint4 units = x[min(first + lane / 4, n - 1) * 4 + lane % 4];
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) {
            float of_run[4] = {};
            mma32(of_run, Interleaved(all_ones(), all_ones(), zero), F::RUNS > 1 && lane % 4 / 2 != run ? make_uint4(0, 0, 0, 0) : units);
            if (lane < 4) sums[(first + lane * 2) * F::RUNS + run] = of_run[0], sums[(first + lane * 2 + 1) * F::RUNS + run] = of_run[1];
        }
    }
    __syncwarp();
}
// The scales and minimums of rows g of two units of one form.
template <class F> struct PairNumbers {
    AllRuns<F> of[2];
    __device__ __forceinline__ PairNumbers(const u8 *upper, const u8 *lower, int lane) {
        if constexpr (!F::IS_PLAIN) of[0] = {upper, lane / 4}, of[1] = {lower, lane / 4};
    }
};
// The codes of two units of one form as the rows of a product. `zero` as for `Interleaved`.
template <class F> __device__ __forceinline__ Interleaved unpack_pair(const u8 *upper, const u8 *lower, int lane, u32 zero) {
    return Interleaved(unpack<F>(upper, lane), unpack<F>(lower, lane), F::IS_PLAIN ? zero : 0);
}
// What `add_unit` adds, of two units: those of rows g of both with tokens 2c and 2c + 1, in lane
// 4g + c; of ONE token, only those with even ones.
template <class F, bool ONE>
__device__ __forceinline__ void add_pair(float (&sum)[4], const Interleaved &codes, const PairNumbers<F> &numbers, const ColumnInput<F, ONE> &x) {
    if constexpr (F::IS_PLAIN) return mma32(sum, codes, x.runs[0]);
    else {
        float products[ColumnInput<F, ONE>::N][4] = {};
#pragma unroll
        for (int run = 0; run < F::RUNS; ++run) {
            const int i = ONE ? 0 : run, own = ONE ? run : 0; // which product, and which of its columns
            if (i == run) mma32(products[i], codes, x.runs[i]);
#pragma unroll
            for (int e = 0; e < 4; e += ONE ? 2 : 1) sum[e] = __fmaf_rn(numbers.of[e / 2].of[run].scale, products[i][e + own], sum[e]);
            if constexpr (F::HAS_OFFSET)
#pragma unroll
                for (int e = 0; e < 4; e += ONE ? 2 : 1) sum[e] = __fmaf_rn(numbers.of[e / 2].of[run].minimum, x.sums[i][e + own], sum[e]);
        }
    }
}
template <class F, bool ONE>
__device__ __forceinline__ void add_pair(float (&sum)[4], const u8 *upper, const u8 *lower, const ColumnInput<F, ONE> &x, int lane, u32 zero) {
    add_pair<F, ONE>(sum, unpack_pair<F>(upper, lower, lane, zero), PairNumbers<F>(upper, lower, lane), x);
}

// The same of one token and one tile, of two units that follow one another: the first has rows g of
// a product, the second rows g + 8. Even columns of `x` are the input of the first, odd ones that of
// the second; the other half of the product is of no use.
template <class F> __device__ __forceinline__ void add_two(float &sum, const u8 *units, const ColumnInput<F, false> &x, int lane) {
    const Interleaved codes = unpack_pair<F>(units, units + F::BYTES, lane, 0);
    const PairNumbers<F> numbers(units, units + F::BYTES, lane);
    float of_runs[F::RUNS][4] = {};
#pragma unroll
    for (int run = 0; run < F::RUNS; ++run) mma32(of_runs[run], codes, x.runs[run]);
#pragma unroll
    for (int i = 0; i < 2 * F::RUNS; ++i) {
        const int unit = i / F::RUNS, run = i % F::RUNS;
        sum = __fmaf_rn(numbers.of[unit].of[run].scale, of_runs[run][unit * 3], sum);
        if constexpr (F::HAS_OFFSET) sum = __fmaf_rn(numbers.of[unit].of[run].minimum, x.sums[run][unit * 3], sum);
    }
}

// Eight columns of a row of a unit, rounded to bf16.
template <class F> __device__ __forceinline__ uint4 widened(const u8 *unit, int row, int chunk) {
    const uint4 codes = unpack<F>(unit, row * 4 + chunk);
    if constexpr (F::IS_PLAIN) return codes;
    else {
        const int run = F::RUNS > 1 ? chunk / 2 : 0;
        const RowNumbers numbers = row_numbers<F>(unit, run, row);
        const auto weight = [&](float value) {
            if constexpr (F::OFFSET == ZERO) return __fmul_rn(numbers.scale, value - signed_byte(unit[F::ZEROS + row * F::RUNS + run]) / F::FACTOR);
            else if constexpr (F::OFFSET == MINIMUM) return __fmul_rn(numbers.scale, value) + numbers.minimum;
            else return __fmul_rn(numbers.scale, value);
        };
        const auto pair = [&](u32 values) { return round_pair(weight(low(values)), weight(high(values))); };
        return make_uint4(pair(codes.x), pair(codes.y), pair(codes.z), pair(codes.w));
    }
}

// ---- matrices ----------------------------------------------------------------------------------
// Runs of a unit over which the input is summed, because some form has offsets.
template <class... Fs> constexpr int summed_runs() {
    int most = 0;
    ((most = Fs::HAS_OFFSET && Fs::RUNS > most ? Fs::RUNS : most), ...);
    return most;
}
// Which form a tile of eight rows has, and where it lies. BYTES are those of the largest unit; if
// not all units are plain, they decide how units of a tile are put into strips.
template <class F> struct OneForm {
    using Form = F;
    static constexpr bool IS_PLAIN = F::IS_PLAIN, IS_UNIFORM = true;
    static constexpr int BYTES = F::BYTES, CODED_BYTES = IS_PLAIN ? 0 : BYTES, SUMMED_RUNS = summed_runs<F>();
    static __device__ __forceinline__ int unit_bytes(int) { return BYTES; }
    // Units of eight rows before a tile, in bytes of one unit a row of units.
    static __device__ __forceinline__ u64 place(int tile) { return (u64)tile * BYTES; }
    template <class Work> static __device__ __forceinline__ void with(int, Work work) { work(F{}); }
};
// Rows of q, k and v: tiles from FIRST_K and FIRST_V on.
template <class Q, class K, class V, int FIRST_K, int FIRST_V> struct ThreeForms {
    static constexpr bool IS_PLAIN = false, IS_UNIFORM = false;
    static constexpr int BYTES = Q::BYTES > K::BYTES ? Q::BYTES > V::BYTES ? Q::BYTES : V::BYTES : K::BYTES > V::BYTES ? K::BYTES : V::BYTES, CODED_BYTES = BYTES;
    static constexpr int SUMMED_RUNS = summed_runs<Q, K, V>();
    static __device__ __forceinline__ int unit_bytes(int tile) { return tile < FIRST_K ? Q::BYTES : tile < FIRST_V ? K::BYTES : V::BYTES; }
    static __device__ __forceinline__ int form_of(int tile) { return (tile >= FIRST_K) + (tile >= FIRST_V); }
    static __device__ __forceinline__ u64 place(int tile) {
        return (u64)min(tile, FIRST_K) * Q::BYTES + (u64)max(min(tile, FIRST_V) - FIRST_K, 0) * K::BYTES + (u64)max(tile - FIRST_V, 0) * V::BYTES;
    }
    template <class Work> static __device__ __forceinline__ void with(int tile, Work work) {
        if (tile < FIRST_K) work(Q{});
        else if (tile < FIRST_V) work(K{});
        else work(V{});
    }
};
// Tiles of gate and up in turn.
template <class Gate, class Up> struct FormsInTurn {
    static constexpr bool IS_PLAIN = false, IS_UNIFORM = false;
    static constexpr int BYTES = Gate::BYTES > Up::BYTES ? Gate::BYTES : Up::BYTES, CODED_BYTES = BYTES, SUMMED_RUNS = summed_runs<Gate, Up>();
    static __device__ __forceinline__ int unit_bytes(int tile) { return tile % 2 == 0 ? Gate::BYTES : Up::BYTES; }
    static __device__ __forceinline__ int form_of(int tile) { return tile % 2; }
    static __device__ __forceinline__ u64 place(int tile) { return (u64)(tile / 2) * (Gate::BYTES + Up::BYTES) + (tile % 2 == 0 ? 0 : Gate::BYTES); }
    template <class Work> static __device__ __forceinline__ void with(int tile, Work work) {
        if (tile % 2 == 0) work(Gate{});
        else work(Up{});
    }
};
// Where a tile of `units` units a warp begins.
template <class W> __device__ __forceinline__ u64 tile_place(int tile, int units) { return W::place(tile) * (WARPS * units); }

// A row of a matrix of HIDDEN columns in one form: eight of its columns, rounded to bf16.
template <class W> __device__ __forceinline__ uint4 read_chunk(const u8 *weights, u32 row, int chunk) {
    uint4 values;
    W::with(0, [&](auto form) {
        using F = decltype(form);
        const u8 *unit = weights + tile_place<W>(row / 8, HIDDEN_UNITS) + (u64)unit_place<HIDDEN_UNITS, W::CODED_BYTES>(chunk / 4) * F::BYTES;
        values = widened<F>(unit, row % 8, chunk % 4);
    });
    // Columns beyond the last may have codes of anything.
    if constexpr (!W::IS_PLAIN && HIDDEN < HIDDEN_STRIDE) {
        const auto keep = [&](u32 pair, int column) { return pair & (column + 1 < HIDDEN ? 0xffffffffu : column < HIDDEN ? 0xffffu : 0); };
        const int first = chunk * 8;
        values = make_uint4(keep(values.x, first), keep(values.y, first + 2), keep(values.z, first + 4), keep(values.w, first + 6));
    }
    return values;
}
