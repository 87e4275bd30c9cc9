//! See `weft_fuzz::tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::tokenizer(input));
