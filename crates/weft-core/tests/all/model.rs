//! Opens whole model folders: the sources of end tokens, and parts that do not match.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use weft_core::model::{Model, ModelError};

fn bundled(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny");
    fs::read_to_string(folder.join(file)).unwrap()
}

/// The bundled model's folder with some files replaced.
fn folder(changes: &[(&str, &str)]) -> TempDir {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(bundled.join(file), folder.path().join(file)).unwrap();
    }
    for (file, text) in changes {
        fs::write(folder.path().join(file), text).unwrap();
    }
    folder
}

fn config_with_eos(eos: &str) -> String {
    let json = bundled("config.json");
    let changed = json.replace("\"eos_token_id\": 1980", &format!("\"eos_token_id\": {eos}"));
    assert_ne!(json, changed);
    changed
}

#[test]
fn end_tokens_come_from_every_file_that_names_them() {
    let stops = |changes: &[(&str, &str)]| Model::open(folder(changes).path()).unwrap().stop_ids;
    assert_eq!(stops(&[]), [1978, 1980], "the tokenizer's <|endoftext|> and <|im_end|>");
    assert_eq!(stops(&[("config.json", &config_with_eos("2"))]), [2, 1978, 1980]);
    assert_eq!(stops(&[("config.json", &config_with_eos("[1, 2]"))]), [1, 2, 1978, 1980]);
    let generation = ("generation_config.json", r#"{"eos_token_id": [3, 4], "temperature": 0.5}"#);
    assert_eq!(stops(&[generation]), [3, 4, 1978, 1980]);
    let model = Model::open(folder(&[generation]).path()).unwrap();
    assert_eq!(model.generation.temperature, Some(0.5));
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let tokenizer = bundled("tokenizer.json");
    let large =
        tokenizer.replace("\"id\":1980,", "\"id\":5000,").replace("\"id\": 1980,", "\"id\": 5000,");
    assert_ne!(tokenizer, large);
    match Model::open(folder(&[("tokenizer.json", &large)]).path()).err() {
        Some(ModelError::Vocabulary { tokens: 5001, vocab: 2048 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_part_that_is_broken_is_named() {
    let error = |changes: &[(&str, &str)]| {
        Model::open(folder(changes).path()).err().expect("opened").to_string()
    };
    assert!(error(&[("tokenizer.json", "{}")]).contains("tokenizer"));
    assert!(error(&[("generation_config.json", "[]")]).contains("generation_config.json"));
    assert!(error(&[("chat_template.jinja", "{% if %}")]).contains("line 1"));
    let long = " ".repeat((1 << 20) + 1);
    assert!(error(&[("generation_config.json", &long)]).contains("more than 1048576 bytes"));
    let absent = folder(&[]).path().join("absent");
    let missing = Model::open(&absent).err().expect("opened").to_string();
    assert!(missing.contains("absent") && missing.contains("org/name"), "{missing}");
}

/// Rows of one model must never be used for another: two fine-tunes differ only in their weights.
#[test]
fn whatever_decides_the_rows_is_in_the_fingerprint() {
    let of = |folder: &TempDir| Model::open(folder.path()).unwrap().fingerprint("device");
    let plain = of(&folder(&[]));
    assert_eq!(plain, of(&folder(&[])));
    let other_device = Model::open(folder(&[]).path()).unwrap().fingerprint("other device");
    assert_ne!(plain, other_device);
    let config = bundled("config.json");
    let theta = config.replace("\"rope_theta\": ", "\"rope_theta\": 1");
    assert_ne!(config, theta);
    assert_ne!(plain, of(&folder(&[("config.json", &theta)])), "the config");
    // Any other tensor would do as well: it is read at its begin, in its middle and at its end.
    let whole = fs::read(folder(&[]).path().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&whole[8..8 + header]).unwrap();
    let range = &tensors["model.embed_tokens.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|at| 8 + header + range[at].as_u64().unwrap() as usize);
    for at in [start, start.midpoint(end), end - 1] {
        let tuned = folder(&[]);
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(tuned.path().join("model.safetensors"), bytes).unwrap();
        assert_ne!(plain, of(&tuned), "the weights, {} of {}", at - start, end - start);
    }
}
