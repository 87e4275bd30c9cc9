//! Broken and hostile GGUF files: each gives a clear error, never a panic, and never uses much
//! memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File};
use std::path::Path;

use cap::Cap;
use proptest::prelude::*;
use weft_core::prompt::Template;
use weft_core::sampling::GenerationConfig;
use weft_core::tokenizer::Tokenizer;
use weft_core::weights::{Form, Gguf, Tensor, Weights, tensors};
use weft_testing::gguf::{GgufFile, Stored};

/// The test ends if more than this is allocated: nothing below may need it, whatever a file claims.
const MEMORY_LIMIT: usize = 192 << 20;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, MEMORY_LIMIT);

/// Opens a file and reads everything in it.
fn load(gguf: Gguf) -> Result<usize, String> {
    let config = gguf.config().map_err(|e| e.to_string())?;
    if let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) {
        let _ = Template::from_gguf(gguf.metadata(), &tokenizer);
    }
    let _ = GenerationConfig::from_gguf(gguf.metadata());
    let weights = gguf.weights(&config).map_err(|e| e.to_string())?;
    let mut elements = 0;
    for shape in tensors(&config) {
        let tensor = shape.tensor;
        weights.read(tensor, &mut |_, row| elements += row.len()).map_err(|e| e.to_string())?;
        if weights.form(tensor) != Form::Plain {
            weights.read_coded(tensor, &mut |_, _| {}).map_err(|e| e.to_string())?;
        }
    }
    Ok(elements)
}

fn load_bytes(bytes: Vec<u8>) -> Result<usize, String> {
    load(Gguf::from_bytes("input", bytes).map_err(|e| e.to_string())?)
}

/// A file with a change is refused, and the message has all these parts.
fn assert_refused(change: impl FnOnce(&mut GgufFile), expected: &[&str]) {
    let mut file = GgufFile::tiny();
    change(&mut file);
    let error = load_bytes(file.bytes()).expect_err("a broken file was loaded");
    for part in expected {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn the_file_without_changes_loads_in_versions_2_and_3_and_any_alignment() {
    let values = |file: &GgufFile| {
        let gguf = Gguf::from_bytes("input", file.bytes()).unwrap();
        let config = gguf.config().unwrap();
        let weights = gguf.weights(&config).unwrap();
        let mut values = Vec::new();
        for shape in tensors(&config) {
            weights.read(shape.tensor, &mut |_, row| values.extend_from_slice(row)).unwrap();
        }
        values
    };
    // Values that differ wherever they lie.
    let numbered = || {
        let mut file = GgufFile::tiny();
        for tensor in file.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 1) {
            let words = tensor.bytes.as_chunks_mut::<4>().0.iter_mut();
            words.zip(1_u8..).for_each(|(word, n)| *word = f32::from(n).to_le_bytes());
        }
        file
    };
    let expected = values(&numbered());
    assert_eq!(expected.len(), 6400);
    assert!(expected.windows(2).any(|pair| pair[0] != pair[1]));
    for version in [2, 3] {
        for alignment in [None, Some(8), Some(32), Some(4096)] {
            let file = GgufFile { version, alignment, ..numbered() };
            assert_eq!(load_bytes(file.bytes()), Ok(6400), "{version} {alignment:?}");
            assert_eq!(values(&file), expected, "{version} {alignment:?}");
        }
    }
}

#[test]
fn containers_that_are_broken_are_refused() {
    assert_refused(|file| file.version = 1, &["version 1", "2 and 3", "converted again"]);
    assert_refused(|file| file.version = 4, &["version 4"]);
    assert_refused(|file| file.version = 3_u32.swap_bytes(), &["big-endian"]);
    for alignment in [0, 3, 1 << 20] {
        let named = format!("`general.alignment` is {alignment}");
        assert_refused(|file| file.alignment = Some(alignment), &[&named]);
    }
    assert_refused(|file| file.keys.push(file.keys[3].clone()), &["is there twice"]);
    assert_refused(|file| file.tensors.push(file.tensors[3].clone()), &["is there twice"]);
    assert_refused(|file| file.set("a", 13, &[]), &["`a` has the type 13"]);
    // A list of lists.
    assert_refused(|file| file.set_list("a", 9, 1, &[0; 12]), &["`a` has the type 9"]);
    assert_refused(|file| file.tensors[0].name = "x".repeat(2000), &["2000 bytes for a name"]);
    let error = load_bytes(b"PK\x03\x04 and so on".to_vec()).unwrap_err();
    assert!(error.contains("not with \"GGUF\""), "{error}");
}

#[test]
fn lengths_that_the_file_does_not_have_take_no_memory() {
    let huge = u64::MAX.to_le_bytes();
    let tera = (1_u64 << 40).to_le_bytes();
    for count in [huge, tera] {
        assert_refused(|file| file.set("a", 8, &count), &["claims", "bytes, at most"]);
        let list = |kind: u32| [&kind.to_le_bytes()[..], &count].concat();
        assert_refused(|file| file.set("a", 9, &list(8)), &["`a` claims", "texts, at most"]);
        assert_refused(|file| file.set("a", 9, &list(12)), &["claims", "bytes, at most"]);
        for at in [8, 16] {
            let mut bytes = GgufFile::tiny().bytes();
            bytes[at..at + 8].copy_from_slice(&count);
            let error = load_bytes(bytes).unwrap_err();
            assert!(error.contains("and the limit is"), "{error}");
        }
    }
    // Many empty texts are cheap; many keys are refused.
    assert!(load_bytes(with(|file| file.set_texts("a", &vec![String::new(); 200_000]))).is_ok());
    let many = with(|file| (0..20_000).for_each(|i| file.keys.push((format!("k{i}"), vec![0; 5]))));
    assert!(load_bytes(many).unwrap_err().contains("20010 keys"));
}

fn with(change: impl FnOnce(&mut GgufFile)) -> Vec<u8> {
    let mut file = GgufFile::tiny();
    change(&mut file);
    file.bytes()
}

/// A file of a terabyte that holds nothing but a header: the length of the file is no protection.
#[test]
fn a_sparse_file_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        if File::options().write(true).open(&path).unwrap().set_len(1 << 40).is_err() {
            return "at most 0 bytes fit".to_owned();
        }
        Gguf::open(&path).map_err(|e| e.to_string()).and_then(load).unwrap_err()
    };
    let mut file = GgufFile::tiny();
    file.tensors.clear();
    file.set("a", 8, &(1_u64 << 35).to_le_bytes());
    assert!(open(&file.bytes()).contains("fit"));
    // Rows of a terabyte.
    let mut file = GgufFile::tiny();
    file.tensor("token_embd.weight").shape = vec![1 << 38, 4];
    assert!(open(&file.bytes()).contains("token_embd.weight"));
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    const Q: &str = "blk.0.attn_q.weight";
    let change = |change: &dyn Fn(&mut Stored), expected: &[&str]| {
        assert_refused(|file| change(file.tensor(Q)), &[&[Q][..], expected].concat());
    };
    change(&|q| q.shape = vec![], &["has 0 dimensions"]);
    change(&|q| q.shape = vec![1; 5], &["has 5 dimensions"]);
    change(&|q| q.shape = vec![32, 0], &["impossible shape"]);
    change(&|q| q.shape = vec![1 << 40, 1 << 40], &["impossible shape"]);
    change(&|q| q.shape = vec![u64::MAX], &["impossible shape"]);
    change(&|q| q.shape = vec![32, 1 << 40], &["does not lie inside"]);
    change(&|q| q.shape = vec![48, 32], &["whole blocks of 32"]);
    change(&|q| q.shape = vec![32, 16], &["has shape [16, 32]", "requires [32, 32]"]);
    change(&|q| q.offset = Some(u64::MAX - 31), &["does not lie inside"]);
    change(&|q| q.offset = Some(1 << 62), &["does not lie inside"]);
    change(&|q| q.offset = Some(33), &["not aligned"]);
    change(&|q| q.offset = Some(0), &["overlap", "token_embd.weight"]);
    for (kind, name) in [(16, "IQ2_XXS"), (40, "NVFP4"), (35, "TQ2_0"), (99, "type 99")] {
        change(&|q| q.kind = kind, &[name, "take another file", "Q4_K_M"]);
    }
    assert_refused(|file| file.tensors.retain(|t| t.name != Q), &[Q, "is missing"]);
    // One more in a layer, a layer too many, and what belongs to another kind of model.
    for name in ["blk.0.attn_q.bias", "blk.9.attn_q.weight", "v.patch_embd.weight", "x"] {
        let surplus = |file: &mut GgufFile| {
            let tensor = Stored { name: name.to_owned(), ..file.tensor(Q).clone() };
            file.tensors.push(tensor);
        };
        assert_refused(surplus, &[&format!("`{name}`"), "not part of this model"]);
    }
}

#[test]
fn scales_that_are_not_finite_are_refused_by_tensor_and_row() {
    let infinite = |file: &mut GgufFile| {
        let q = file.tensor("blk.0.attn_q.weight");
        q.bytes[3 * 34..][..2].copy_from_slice(&0x7c00_u16.to_le_bytes());
    };
    assert_refused(infinite, &["blk.0.attn_q.weight", "inf in row 3"]);
    let nan = |file: &mut GgufFile| {
        file.tensor("output_norm.weight").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    assert_refused(nan, &["output_norm.weight", "NaN in row 0"]);
    for (exponent, ok) in [(0, true), (252, true), (253, false), (255, false)] {
        let bytes = with(|file| {
            let q = file.tensor("blk.0.attn_q.weight");
            (q.kind, q.bytes) = (39, vec![0x77; 17 * 32]);
            q.bytes.chunks_mut(17).for_each(|block| block[0] = exponent);
        });
        assert_eq!(load_bytes(bytes).is_ok(), ok, "{exponent}");
    }
}

#[test]
fn values_of_the_metadata_that_weft_cannot_run_are_named() {
    let set = |key: &'static str, value: u32| {
        move |file: &mut GgufFile| file.set_u32(&format!("qwen3.{key}"), value)
    };
    for (key, value) in [
        ("embedding_length", 0),
        ("embedding_length", u32::MAX),
        ("block_count", 2000),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 15),
        ("context_length", u32::MAX),
        ("expert_count", 8),
        ("attention.sliding_window", 1024),
        ("rope.dimension_count", 8),
        ("attention.value_length", 8),
    ] {
        assert_refused(set(key, value), &[&format!("`qwen3.{key}` is {value}; weft supports")]);
    }
    assert_refused(|f| f.remove("qwen3.block_count"), &["`qwen3.block_count` is absent"]);
    assert_refused(|f| f.set_text("qwen3.block_count", "1"), &["`qwen3.block_count` is \"1\""]);
    assert_refused(
        |f| f.set_f32("qwen3.rope.freq_base", f32::INFINITY),
        &["`qwen3.rope.freq_base` is inf"],
    );
    assert_refused(
        |f| f.set_text("qwen3.rope.scaling.type", "longrope"),
        &["`qwen3.rope.scaling.type` is longrope", "yarn"],
    );
    for (name, why) in [
        ("qwen2moe", "mixtures of experts"),
        ("qwen35", "recurrent"),
        ("gemma3", "qwen3, qwen3moe"),
    ] {
        assert_refused(|f| f.set_text("general.architecture", name), &[name, why]);
    }
    assert_refused(|f| f.remove("general.architecture"), &["`general.architecture` is absent"]);
    // One number for each layer is fine, if all are equal.
    let heads = |numbers: [u32; 2]| {
        let elements = numbers.map(u32::to_le_bytes).concat();
        with(|f| f.set_list("qwen3.attention.head_count_kv", 4, 2, &elements))
    };
    assert!(load_bytes(heads([1, 1])).is_ok());
    assert!(load_bytes(heads([1, 2])).unwrap_err().contains("the same in every layer"));
}

/// Keys that change what a model computes, and the only value that weft's ops compute.
const NEUTRAL: [(&str, f32); 9] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.sliding_window", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
];

/// The same of mixtures of experts.
const NEUTRAL_OF_EXPERTS: [(&str, f32); 6] = [
    ("expert_gating_func", 1.0),
    ("expert_group_count", 0.0),
    ("expert_shared_count", 0.0),
    ("expert_weights_norm", 1.0),
    ("expert_weights_scale", 1.0),
    ("leading_dense_block_count", 0.0),
];

/// A file of experts that a GGUF writer would make.
fn sparse_file() -> GgufFile {
    let mut sparse = GgufFile::tiny();
    for (key, _) in &mut sparse.keys {
        *key = key.replace("qwen3.", "qwen3moe.");
    }
    sparse.set_text("general.architecture", "qwen3moe");
    let experts = [("count", 4), ("used_count", 2), ("feed_forward_length", 32)];
    for (key, value) in experts {
        sparse.set_u32(&format!("qwen3moe.expert_{key}"), value);
    }
    sparse
}

/// gguf-py writes it as a truth value.
#[test]
fn whether_weights_of_experts_are_normed_may_be_a_truth_value() {
    let config = |flag| {
        let mut file = sparse_file();
        file.set_flag("qwen3moe.expert_weights_norm", flag);
        Gguf::from_bytes("input", file.bytes()).unwrap().config().map_err(|e| e.to_string())
    };
    config(true).unwrap();
    let refused = config(false).unwrap_err();
    assert!(refused.contains("`qwen3moe.expert_weights_norm` is 0; weft supports 1"), "{refused}");
}

#[test]
fn keys_that_change_the_result_are_refused_unless_they_are_neutral() {
    let (dense, sparse) = (GgufFile::tiny(), sparse_file());
    let of_sparse = [&NEUTRAL[..], &NEUTRAL_OF_EXPERTS].concat();
    for (file, name, keys) in [(dense, "qwen3", NEUTRAL.to_vec()), (sparse, "qwen3moe", of_sparse)]
    {
        let config = |key: &str, value: f32| {
            let mut file = file.clone();
            file.set_f32(key, value);
            let gguf = Gguf::from_bytes("input", file.bytes()).unwrap();
            gguf.config().map_err(|error| error.to_string())
        };
        let mut taken = Vec::new();
        for (key, neutral) in keys {
            let key = format!("{name}.{key}");
            assert!(config(&key, neutral).is_ok(), "{key}");
            let number = neutral + 0.5;
            match config(&key, number) {
                Ok(_) => taken.push(key),
                Err(error) => {
                    let named = format!("`{key}` is {number}; weft supports {neutral}");
                    assert!(error.contains(&named), "{error}");
                }
            }
        }
        assert!(taken.is_empty(), "{taken:?}");
    }
}

fn tokenizer(change: impl FnOnce(&mut GgufFile)) -> Result<Tokenizer, String> {
    let json = fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny/tokenizer.json"),
    );
    let mut file = GgufFile::tiny();
    file.add_tokenizer(&serde_json::from_slice(&json.unwrap()).unwrap(), "qwen2", 2048);
    change(&mut file);
    let gguf = Gguf::from_bytes("input", file.bytes()).unwrap();
    Tokenizer::from_gguf(gguf.metadata()).map_err(|error| error.to_string())
}

#[test]
fn tokenizers_that_weft_cannot_run_are_refused() {
    let refused = |change: &dyn Fn(&mut GgufFile), expected: &[&str]| {
        let error = tokenizer(change).expect_err("a broken tokenizer was loaded");
        for part in expected {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    };
    let text =
        |key: &'static str, value: &'static str| move |f: &mut GgufFile| f.set_text(key, value);
    assert!(tokenizer(|_| {}).is_ok());
    refused(&text("tokenizer.ggml.model", "llama"), &["SentencePiece", "take a Qwen3"]);
    refused(&text("tokenizer.ggml.model", "bert"), &["\"bert\""]);
    refused(&text("tokenizer.ggml.pre", "deepseek-v3"), &["\"deepseek-v3\"", "llama-bpe"]);
    refused(&|f| f.remove("tokenizer.ggml.pre"), &["does not say how"]);
    for key in ["model", "tokens", "merges", "token_type"] {
        let key = format!("tokenizer.ggml.{key}");
        refused(&|f| f.remove(&key), &[&format!("no `{key}`")]);
    }
    refused(&|f| f.set_u32("tokenizer.ggml.tokens", 1), &["`tokenizer.ggml.tokens` is 1"]);
    refused(&|f| f.set_list("tokenizer.ggml.token_type", 5, 1, &[0; 4]), &["2048 tokens and 1"]);
    let merges = |f: &mut GgufFile| f.set_texts("tokenizer.ggml.merges", &["no".into()]);
    refused(&merges, &["\"no\" has no space"]);
    let merges = |f: &mut GgufFile| f.set_texts("tokenizer.ggml.merges", &["zq zq".into()]);
    refused(&merges, &["needs the token"]);
    refused(&|f| f.set("tokenizer.ggml.add_bos_token", 7, &[1]), &["bos_token_id"]);
    let bos = |f: &mut GgufFile| {
        f.set("tokenizer.ggml.add_bos_token", 7, &[1]);
        f.set_u32("tokenizer.ggml.bos_token_id", u32::MAX);
    };
    refused(&bos, &["4294967295, which is not a token"]);
    let eos = |f: &mut GgufFile| {
        f.set("tokenizer.ggml.add_eos_token", 7, &[1]);
        f.set_u32("tokenizer.ggml.eos_token_id", u32::MAX);
    };
    refused(&eos, &["eos_token_id", "4294967295, which is not a token"]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let of = |change: &dyn Fn(&mut GgufFile)| {
        let gguf = Gguf::from_bytes("input", with(change)).unwrap();
        GenerationConfig::from_gguf(gguf.metadata()).map_err(|error| error.to_string())
    };
    assert_eq!(of(&|f| f.set_u32("general.sampling.top_k", 7)).unwrap().top_k, Some(7));
    let error = of(&|f| f.set_f32("general.sampling.top_p", 2.0)).unwrap_err();
    assert!(error.contains("general.sampling") && error.contains("top_p is 2"), "{error}");
    let error = of(&|f| f.set_text("general.sampling.temp", "hot")).unwrap_err();
    assert!(error.contains("`general.sampling.temp` is \"hot\""), "{error}");
}

/// Rows of llama are read in the order that Hugging Face has, whatever their type.
#[test]
fn rows_of_llama_move_as_a_whole() {
    let mut file = GgufFile::tiny();
    for (key, _) in &mut file.keys {
        *key = key.replace("qwen3.", "llama.");
    }
    file.set_text("general.architecture", "llama");
    file.tensors.retain(|tensor| {
        !tensor.name.contains("_norm.")
            || !tensor.name.contains("attn_q") && !tensor.name.contains("attn_k")
    });
    let q = file.tensor("blk.0.attn_q.weight");
    for (row, block) in q.bytes.chunks_mut(34).enumerate() {
        block[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
        block[2..].fill(row as u8);
    }
    let gguf = Gguf::from_bytes("input", file.bytes()).unwrap();
    let config = gguf.config().unwrap();
    let weights = gguf.weights(&config).unwrap();
    let mut rows = Vec::new();
    let q = Tensor::Layer(0, weft_core::weights::LayerTensor::Q);
    weights.read(q, &mut |_, row| rows.push(row[31] as usize)).unwrap();
    let head = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];
    let expected: Vec<usize> = head.into_iter().chain(head.map(|row| row + 16)).collect();
    assert_eq!(rows, expected);
}

fn written() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf");
    ["chat.gguf", "types.gguf"].map(|name| fs::read(folder.join(name)).unwrap()).to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Bytes of the header change at random; the file is refused or read.
    #[test]
    fn changed_bytes_never_panic(
        changes in prop::collection::vec((0_usize..3000, any::<u8>()), 1..6),
        large in prop::option::of((0_usize..1500, any::<u64>())),
        which in 0_usize..3,
    ) {
        let mut bytes = written().into_iter().nth(which).unwrap_or(GgufFile::tiny().bytes());
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some((at, number)) = large {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let _ = load_bytes(bytes);
    }

    #[test]
    fn cut_files_are_refused(cut in 0_usize..10_000) {
        let mut bytes = GgufFile::tiny().bytes();
        bytes.truncate(cut % bytes.len());
        prop_assert!(load_bytes(bytes).is_err());
    }
}
