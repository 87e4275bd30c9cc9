//! See `weft_fuzz::chunk_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::chunk_file(input));
