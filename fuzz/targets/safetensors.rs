//! See `weft_fuzz::safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::safetensors(input));
