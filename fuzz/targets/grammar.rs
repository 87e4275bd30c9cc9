//! See `weft_fuzz::grammar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::grammar(input));
