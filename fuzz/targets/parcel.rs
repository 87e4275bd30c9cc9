//! See `weft_fuzz::parcel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weft_fuzz::parcel(input));
