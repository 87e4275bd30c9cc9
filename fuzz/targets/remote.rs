//! See `weft_fuzz::remote`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::remote(input));
