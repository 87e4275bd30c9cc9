//! All targets in one program, for machines that it has to be brought to: the environment's
//! `WEFT_FUZZ_TARGET` names the one that runs.
#![no_main]

use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 11] = [
    ("chunk_file", weft_fuzz::chunk_file),
    ("config", weft_fuzz::config),
    ("gguf", weft_fuzz::gguf),
    ("grammar", weft_fuzz::grammar),
    ("parcel", weft_fuzz::parcel),
    ("remote", weft_fuzz::remote),
    ("request", weft_fuzz::request),
    ("safetensors", weft_fuzz::safetensors),
    ("template", weft_fuzz::template),
    ("tokenizer", weft_fuzz::tokenizer),
    ("tool_calls", weft_fuzz::tool_calls),
];

fn chosen() -> Target {
    let name = std::env::var("WEFT_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("WEFT_FUZZ_TARGET is {name:?}, which is no target")).1
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    CHOSEN.get_or_init(chosen)(input);
});
