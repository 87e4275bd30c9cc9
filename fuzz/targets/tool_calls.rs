//! See `weft_fuzz::tool_calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::tool_calls(input));
