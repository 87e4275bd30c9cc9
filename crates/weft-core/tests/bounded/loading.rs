//! Broken and hostile weight files: each gives a clear error, never a panic, and never uses much
//! memory.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use weft_core::config::Config;
use weft_core::weights::{Safetensors, Weights, WeightsError, tensors};

use crate::configs::config_json;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A copy of a golden model's folder that a test may break.
pub fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

/// Opens a model's weights and reads every tensor.
fn load(folder: &Path) -> Result<usize, String> {
    let config = Config::from_file(&folder.join("config.json")).map_err(|e| e.to_string())?;
    let weights = Safetensors::open(folder, &config).map_err(|e| e.to_string())?;
    let mut elements = 0;
    for shape in tensors(&config) {
        weights
            .read(shape.tensor, &mut |_, row| elements += row.len())
            .map_err(|e| e.to_string())?;
    }
    Ok(elements)
}

pub fn assert_refused(folder: &Path, expected: &[&str]) {
    let error = load(folder).expect_err("a broken model was loaded");
    for part in expected {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn every_golden_model_loads() {
    for name in ["qwen3", "qwen3_yarn", "qwen2", "llama3"] {
        let config = Config::from_file(&golden(name).join("config.json")).unwrap();
        assert_eq!(
            load(&golden(name)),
            Ok(weft_core::weights::parameters(&config) as usize),
            "{name}"
        );
    }
}

/// Replaces a safetensors file's header.
fn write_header(path: &Path, header: &str, data: &[u8]) {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(path, file).unwrap();
}

/// The header and the data of a safetensors file.
fn split(path: &Path) -> (String, Vec<u8>) {
    let file = fs::read(path).unwrap();
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (String::from_utf8(file[8..8 + n].to_vec()).unwrap(), file[8 + n..].to_vec())
}

/// Ways to break the header of a weight file, and the words in the errors.
const BROKEN_HEADERS: &[(&str, &str, &[&str])] = &[
    // A tensor that is missing or has another name.
    ("model.norm.weight", "model.norm.wait", &["model.norm.wait", "not part"]),
    ("model.layers.1.mlp", "model.layers.9.mlp", &["model.layers.9.mlp", "not part"]),
    // Same bytes, another shape.
    ("[139,36]", "[36,139]", &["[36, 139]", "[139, 36]"]),
    // Shapes that overflow, or do not fit their bytes.
    ("[139,36]", "[139,18446744073709551615]", &["overflow"]),
    ("[139,36]", "[139,37]", &["not a valid safetensors"]),
    // Another format.
    (r#""F32""#, r#""I32""#, &["I32", "BF16"]),
    (r#""F32""#, r#""F99""#, &["not a valid safetensors"]),
    (r#""F32""#, r#""F64""#, &["not a valid safetensors"]),
    // Offsets that leave a hole, overlap, or run backwards.
    ("[0,", "[4,", &["not a valid safetensors"]),
    (r#""data_offsets":[0,20016]"#, r#""data_offsets":[20016,0]"#, &["not a valid safetensors"]),
];

#[test]
fn a_header_that_lies_is_refused() {
    let original = golden("llama3").join("model.safetensors");
    let (header, data) = split(&original);
    for (from, to, expected) in BROKEN_HEADERS {
        assert!(header.contains(from), "the corpus is stale: no {from} in {header}");
        let folder = copy("llama3");
        write_header(&folder.path().join("model.safetensors"), &header.replace(from, to), &data);
        assert_refused(folder.path(), expected);
    }
}

#[test]
fn a_file_of_the_wrong_length_is_refused() {
    let original = fs::read(golden("llama3").join("model.safetensors")).unwrap();
    let folder = copy("llama3");
    let path = folder.path().join("model.safetensors");
    let mut longer = original.clone();
    longer.push(0);
    fs::write(&path, &longer).unwrap();
    assert_refused(folder.path(), &["161241", "161240"]);
    let config = Config::from_file(&folder.path().join("config.json")).unwrap();
    let open = |cut: usize| {
        fs::write(&path, &original[..cut]).unwrap();
        Safetensors::open(folder.path(), &config).err().expect("opened though it was cut")
    };
    for cut in [0, 1, 7, 8, 9, 100] {
        assert!(matches!(open(cut), WeightsError::Header { .. }), "cut at {cut}");
    }
    for cut in [original.len() / 2, original.len() - 1] {
        let error = open(cut).to_string();
        assert!(error.contains(&format!("has {cut} bytes")) && error.contains("161240"), "{error}");
    }
}

#[test]
fn a_header_larger_than_the_file_is_not_believed() {
    let folder = copy("llama3");
    let path = folder.path().join("model.safetensors");
    for claimed in [1_000, 99 << 20, u64::MAX] {
        let mut file = claimed.to_le_bytes().to_vec();
        file.extend(b"{}");
        fs::write(&path, file).unwrap();
        assert_refused(folder.path(), &["claims", "at most 2 fit"]);
    }
    write_header(&path, &r#"{"a":"#.repeat(100_000), &[]);
    assert_refused(folder.path(), &["recursion limit"]);
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let folder = copy("llama3");
    let path = folder.path().join("model.safetensors");
    let (header, mut data) = split(&path);
    data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write_header(&path, &header, &data);
    assert_refused(folder.path(), &["NaN", "row 0"]);
}

#[test]
fn shards_are_checked_as_one() {
    let index = "model.safetensors.index.json";
    let read = |folder: &TempDir| fs::read_to_string(folder.path().join(index)).unwrap();
    let write = |folder: &TempDir, text: &str| fs::write(folder.path().join(index), text).unwrap();
    let shard = "model-00002-of-00002.safetensors";

    let folder = copy("qwen2");
    fs::remove_file(folder.path().join(shard)).unwrap();
    assert_refused(folder.path(), &[shard]);

    let folder = copy("qwen2");
    let only_first = read(&folder).replace(shard, "model-00001-of-00002.safetensors");
    write(&folder, &only_first);
    assert_refused(folder.path(), &["is missing"]);

    let folder = copy("qwen2");
    fs::copy(folder.path().join(shard), folder.path().join("again.safetensors")).unwrap();
    let twice = read(&folder).replacen(shard, "again.safetensors", 1);
    write(&folder, &twice);
    assert_refused(folder.path(), &["again.safetensors", shard]);

    for name in ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "model.bin", ""] {
        let folder = copy("qwen2");
        let text = read(&folder).replace(shard, name);
        write(&folder, &text);
        assert_refused(folder.path(), &["not a weight file"]);
    }
    for text in ["", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": 3}"#] {
        let folder = copy("qwen2");
        write(&folder, text);
        assert_refused(folder.path(), &["list of shards"]);
    }
    let names: Vec<String> = (0..4097).map(|n| format!("\"{n}\": \"{n}.safetensors\"")).collect();
    let folder = copy("qwen2");
    write(&folder, &format!("{{\"weight_map\": {{{}}}}}", names.join(",")));
    assert_refused(folder.path(), &["list of shards", "4097 files"]);
}

#[test]
fn a_folder_without_weights_says_what_it_lacks() {
    let folder = copy("qwen3");
    for file in ["model", "golden", "ops", "retrieval"].map(|name| format!("{name}.safetensors")) {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_refused(folder.path(), &["no safetensors files"]);
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_refused(folder.path(), &["config.json"]);
}

/// A file may contain a head that the config ties to the embedding; it is not read.
#[test]
fn a_tied_model_may_carry_its_head() {
    let folder = copy("llama3");
    let path = folder.path().join("config.json");
    let json = fs::read_to_string(&path).unwrap();
    let tied = json.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    assert_ne!(json, tied);
    fs::write(&path, tied).unwrap();
    let untied = Config::from_file(&golden("llama3").join("config.json")).unwrap();
    let head = untied.vocab * untied.hidden;
    assert_eq!(load(folder.path()), Ok(weft_core::weights::parameters(&untied) as usize - head));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// If any bytes of the header or the config change, or the file is cut anywhere, the result is
    /// an error or a model, never a panic, and never much memory.
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((0_usize..4096, any::<u8>()), 0..6),
        cut in prop::option::of(0_usize..200_000),
        which in prop::sample::select(vec!["config.json", "model.safetensors"]),
    ) {
        let folder = copy("llama3");
        let path = folder.path().join(which);
        let mut bytes = fs::read(&path).unwrap();
        for (place, value) in edits {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        fs::write(&path, bytes).unwrap();
        let _ = load(folder.path());
    }

    /// Any JSON numbers in a config give an error, or shapes that the files do not have.
    #[test]
    fn absurd_configs_never_take_memory(
        values in prop::collection::vec(prop_oneof![0_u64..300, any::<u64>()], 8),
    ) {
        let names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
            "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"];
        let texts: Vec<String> = values.iter().map(u64::to_string).collect();
        let changes: Vec<_> = names.iter().zip(&texts).map(|(n, t)| (*n, t.as_str())).collect();
        if let Ok(config) = Config::from_json(config_json(&changes).as_bytes()) {
            let opened = Safetensors::open(&golden("qwen3"), &config);
            let refused = matches!(opened.err(), Some(
                WeightsError::Shape { .. } | WeightsError::Missing { .. } | WeightsError::Surplus { .. }
            ));
            prop_assert!(refused);
        }
    }
}
