//! See `weft_fuzz::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::gguf(input));
