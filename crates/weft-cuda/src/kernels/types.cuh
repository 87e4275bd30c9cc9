// Short names of the numbers that kernels compute with.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Where a field of a struct lies, in bytes; NVRTC has another word for it than other compilers.
#ifdef __CUDACC_RTC__
#define OFFSET_OF(type, field) __INTADDR__(&((type *)0)->field)
#else
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#endif

// For lambdas that hold a kernel's registers: a call would put them into memory.
#define INLINED __attribute__((always_inline))
