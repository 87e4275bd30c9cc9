//! GGUF files that gguf-py wrote (`tools/golden_gguf.py`): values of every type, whole models, and
//! the tokenizer, against what gguf-py, the safetensors and the `tokenizer.json` say.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use weft_core::config::{Config, RopeScaling};
use weft_core::dtype::{Dtype, Element};
use weft_core::model::Model;
use weft_core::plan::plan;
use weft_core::reference::Reference;
use weft_core::rope::frequencies;
use weft_core::tokenizer::Tokenizer;
use weft_core::weights::{
    Code, Coded, Form, Gguf, LayerTensor, Offset, Scale, Tensor, Weights, tensors,
};
use weft_testing::gguf::GgufFile;
use weft_testing::golden::Golden;
use weft_testing::{LIMITS, Missing, run, skip};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

fn open(name: &str) -> (Config, Box<dyn Weights>) {
    let gguf = Gguf::open(&path(name)).unwrap();
    let config = gguf.config().unwrap();
    let weights = gguf.weights(&config).unwrap();
    (config, Box::new(weights))
}

fn values(weights: &dyn Weights, tensor: Tensor) -> Vec<f32> {
    let mut values = Vec::new();
    let mut rows = 0;
    let visit = &mut |row, found: &[f32]| {
        assert_eq!(row, rows);
        rows += 1;
        values.extend_from_slice(found);
    };
    weights.read(tensor, visit).unwrap();
    values
}

fn assert_same_bits(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.to_bits(), theirs.to_bits(), "{what}, element {i}: {ours} {theirs}");
    }
}

/// The matrices of `types.gguf` in the order of their names in the file.
fn matrices() -> Vec<Tensor> {
    use LayerTensor::{Gate, K, Q, Up, V};
    let layer = |layer| [Q, K, V, Gate, Up].map(|kind| Tensor::Layer(layer, kind));
    let named = |tensor: &Tensor| match tensor {
        Tensor::Layer(layer, Q) => format!("blk.{layer}.attn_q.weight"),
        Tensor::Layer(layer, K) => format!("blk.{layer}.attn_k.weight"),
        Tensor::Layer(layer, V) => format!("blk.{layer}.attn_v.weight"),
        Tensor::Layer(layer, Gate) => format!("blk.{layer}.ffn_gate.weight"),
        Tensor::Layer(layer, _) => format!("blk.{layer}.ffn_up.weight"),
        Tensor::Embed => "token_embd.weight".to_owned(),
        _ => "output.weight".to_owned(),
    };
    let mut all: Vec<Tensor> = (0..3).flat_map(layer).collect();
    all.extend([Tensor::Embed, Tensor::Head]);
    all.sort_by_key(named);
    all
}

#[test]
fn every_type_has_the_values_of_gguf_py() {
    let (_, weights) = open("types.gguf");
    let truth = fs::read(path("types.truth")).unwrap();
    let mut truth = truth.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let mut forms = Vec::new();
    for tensor in matrices() {
        let ours = values(&*weights, tensor);
        let theirs: Vec<f32> = truth.by_ref().take(ours.len()).collect();
        assert_same_bits(&format!("{tensor:?}"), &ours, &theirs);
        let form = weights.form(tensor);
        if let Form::Coded(coded) = form {
            assert_same_bits(
                &format!("{tensor:?}, codes"),
                &coded_values(&*weights, tensor, coded),
                &theirs,
            );
        }
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    assert_eq!(truth.next(), None);
    // Plain, and one form for each of the 13 types of blocks.
    assert_eq!(forms.len(), 14);
    let coded = |code, group, scale, offset| Form::Coded(Coded { code, group, scale, offset });
    let (int, uint) = (|bits| Code::Int { bits }, |bits| Code::Uint { bits });
    for form in [
        coded(int(8), 32, Scale::F16, Offset::None),
        coded(int(4), 32, Scale::F16, Offset::None),
        coded(uint(4), 32, Scale::F16, Offset::Minimum),
        coded(int(5), 32, Scale::F16, Offset::None),
        coded(uint(5), 32, Scale::F16, Offset::Minimum),
        coded(uint(4), 16, Scale::Steps, Offset::Minimum),
        coded(int(4), 16, Scale::Steps, Offset::None),
        coded(uint(4), 32, Scale::Steps, Offset::Minimum),
        coded(uint(5), 32, Scale::Steps, Offset::Minimum),
        coded(int(6), 16, Scale::Steps, Offset::None),
    ] {
        assert!(forms.contains(&form), "{form:?}");
    }
}

/// The values that a device would compute from codes and scales.
fn coded_values(weights: &dyn Weights, tensor: Tensor, coded: Coded) -> Vec<f32> {
    let table = coded.code.values();
    let mut values = Vec::new();
    weights
        .read_coded(tensor, &mut |_, row| {
            let mut widened = vec![0.0; row.codes.len()];
            row.widen(coded.group, &table, &mut widened);
            values.extend(widened);
        })
        .unwrap();
    values
}

const MODELS: [(&str, &str); 4] = [
    ("qwen3", "qwen3.gguf"),
    ("qwen3_yarn", "qwen3_yarn.gguf"),
    ("qwen2", "qwen2-00001-of-00002.gguf"),
    ("llama3", "llama3.gguf"),
];

#[test]
fn models_have_the_config_and_the_values_of_their_safetensors() {
    for (name, file) in MODELS {
        let golden = Golden::open(name);
        let (config, weights) = open(file);
        let theirs = golden.weights();
        for shape in tensors(&golden.config) {
            let (ours, theirs) = (values(&*weights, shape.tensor), values(&theirs, shape.tensor));
            assert_same_bits(&format!("{name} {:?}", shape.tensor), &ours, &theirs);
        }
        let rope = golden.config.rope.clone();
        let expected = Config {
            dtype: if name == "llama3" { Dtype::F32 } else { Dtype::Bf16 },
            rope: if name == "llama3" { config.rope.clone() } else { rope.clone() },
            eos_ids: Vec::new(),
            ..golden.config
        };
        assert_eq!(config, expected, "{name}");
        let both = [&config.rope, &rope].map(|rope| frequencies(rope, config.head_dim));
        for (ours, theirs) in both[0].iter().zip(&both[1]) {
            assert!((ours - theirs).abs() <= 3e-7 * theirs, "{name}: {ours} {theirs}");
        }
    }
    let (config, _) = open("llama3.gguf");
    assert!(matches!(config.rope.scaling, RopeScaling::Factors(_)));
}

fn logits<E: Element>(config: &Config, weights: &dyn Weights, golden: &Golden) -> Vec<f32> {
    let mut device = Reference::<E>::new(config, weights, LIMITS).unwrap();
    run(&mut device, &plan(config), &[golden.work()]).concat()
}

#[test]
fn models_have_the_logits_of_their_safetensors() {
    for (name, file) in MODELS {
        let golden = Golden::open(name);
        let (config, weights) = open(file);
        let theirs = golden.weights();
        let f32s = logits::<f32>(&config, &*weights, &golden);
        let expected = logits::<f32>(&golden.config, &theirs, &golden);
        if name == "llama3" {
            // Its factors are rounded to f32, and so its angles differ in the last bits.
            let size = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
            let off = weft_testing::max_difference(&f32s, &expected);
            assert!(off <= 2e-5 * size, "{name}: off by {off}, values up to {size}");
            continue;
        }
        assert_same_bits(name, &f32s, &expected);
        let bf16s = logits::<bf16>(&config, &*weights, &golden);
        assert_same_bits(name, &bf16s, &logits::<bf16>(&golden.config, &theirs, &golden));
    }
}

fn bundled(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny").join(file)
}

/// A megabyte of text, and texts that are difficult to split.
fn corpus() -> Vec<String> {
    let mut texts = vec![
        "It's 12345 <|im_end|>\r\n  a\u{301} ſ東\u{200d}🦀 \0xx\t{\"a\": 1}".to_owned(),
        "\u{212b}ngstr\u{f6}m e\u{301}\u{327} \u{1100}\u{1161} don'T WE'LL <think>x</think>"
            .to_owned(),
        " \n\n \t x  \r\n<|im_start|>user\nनमस्ते สวัสดี שלום مرحبا <tool_call>".to_owned(),
    ];
    let source = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    for file in ["../../ARCHITECTURE.md", "../../docs/model.md", "src/tokenizer/file.rs"] {
        texts.push(source(file).unwrap());
    }
    texts.push(fs::read_to_string(bundled("heldout.jsonl")).unwrap());
    texts
}

fn assert_same_tokens(ours: &Tokenizer, theirs: &Tokenizer) {
    assert_eq!(ours.vocab_size(), theirs.vocab_size());
    assert_eq!(ours.bos(), theirs.bos());
    for id in 0..ours.vocab_size() {
        assert_eq!(ours.token_bytes(id), theirs.token_bytes(id), "{id}");
    }
    for text in corpus() {
        let shown: String = text.chars().take(80).collect();
        let tokens = |of: &Tokenizer| of.encode_text(&text).unwrap();
        assert!(tokens(ours) == tokens(theirs), "{shown}");
        let tokens = |of: &Tokenizer| of.encode_markup(&text).unwrap();
        assert!(tokens(ours) == tokens(theirs), "{shown}");
    }
}

#[test]
fn the_tokenizer_equals_the_tokenizer_json() {
    let ours = Tokenizer::from_gguf(Gguf::open(&path("chat.gguf")).unwrap().metadata()).unwrap();
    let theirs = Tokenizer::from_file(bundled("tokenizer.json")).unwrap();
    assert_same_tokens(&ours, &theirs);
    for token in ["<|im_end|>", "<think>", "<|endoftext|>"] {
        assert_eq!(ours.id_of(token), theirs.id_of(token), "{token}");
    }
    assert!(ours.is_special(ours.id_of("<|im_end|>").unwrap()));
}

#[test]
fn the_tokenizer_equals_qwen3_s() {
    let Some(folder) = std::env::var_os("WEFT_TEST_QWEN3") else {
        return skip(Missing::Tokenizer, &"WEFT_TEST_QWEN3 is not set");
    };
    let json = fs::read(Path::new(&folder).join("tokenizer.json")).unwrap();
    let theirs = Tokenizer::from_bytes(&json).unwrap();
    let mut file = GgufFile::tiny();
    file.add_tokenizer(&serde_json::from_slice(&json).unwrap(), "qwen2", 151_936);
    let gguf = Gguf::from_bytes("qwen3", file.bytes()).unwrap();
    assert_same_tokens(&Tokenizer::from_gguf(gguf.metadata()).unwrap(), &theirs);
}

/// What a tokenizer.json has for a name in `tokenizer.ggml.pre`.
struct Kind {
    names: &'static [&'static str],
    expressions: &'static [&'static str],
    nfc: bool,
    ignore_merges: bool,
    has_bos: bool,
}

const KINDS: [Kind; 6] = [
    Kind {
        names: &["qwen2", "deepseek-r1-qwen"],
        expressions: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: true,
        ignore_merges: false,
        has_bos: false,
    },
    Kind {
        names: &["qwen35"],
        expressions: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: true,
        ignore_merges: false,
        has_bos: false,
    },
    Kind {
        names: &["llama-bpe", "llama3", "llama-v3"],
        expressions: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: true,
        has_bos: true,
    },
    Kind {
        names: &["tekken"],
        expressions: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: true,
        has_bos: true,
    },
    Kind {
        names: &["smollm", "starcoder"],
        expressions: &[
            r"\p{N}",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: false,
        has_bos: false,
    },
    Kind {
        names: &["gpt-2"],
        expressions: &[
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        ],
        nfc: false,
        ignore_merges: false,
        has_bos: false,
    },
];

/// Where texts are cut decides which of these merges happen.
const PROBES: [(&str, &str); 13] = [
    ("a", "B"),
    ("Ì", "ģ"),
    ("x", "Ìģ"),
    ("'", "S"),
    ("1", "2"),
    ("12", "3"),
    ("123", "4"),
    ("!", "Ċ"),
    ("!Ċ", "/"),
    ("!", "a"),
    ("Ġ", "Ċ"),
    ("Ġ", "1"),
    ("Ġ", "Ġ"),
];
const PROBE_TEXT: &str = "aB x\u{301}x e\u{301} A'S 1234 !\n/ !a \nb   c zqzqz é 1\n";

/// The bundled tokenizer with the probes as merges, and a word that no merges make.
fn probed() -> serde_json::Value {
    let mut json: serde_json::Value =
        serde_json::from_slice(&fs::read(bundled("tokenizer.json")).unwrap()).unwrap();
    let mut new = PROBES.map(|(left, right)| format!("{left}{right}")).to_vec();
    new.push("Ġzqzqz".to_owned());
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    for (token, id) in new.into_iter().zip(2048..) {
        vocab.entry(token).or_insert(id.into());
    }
    let merges = json["model"]["merges"].as_array_mut().unwrap();
    let probes = PROBES.map(|(left, right)| serde_json::json!([left, right]));
    merges.retain(|merge| !probes.contains(merge));
    merges.splice(..0, probes);
    json
}

fn of_metadata(file: &GgufFile) -> Tokenizer {
    Tokenizer::from_gguf(Gguf::from_bytes("input", file.bytes()).unwrap().metadata()).unwrap()
}

impl Kind {
    /// The same tokenizer from a tokenizer.json.
    fn of_json(&self, mut json: serde_json::Value) -> Tokenizer {
        json["normalizer"] = match self.nfc {
            true => serde_json::json!({ "type": "NFC" }),
            false => serde_json::Value::Null,
        };
        json["model"]["ignore_merges"] = self.ignore_merges.into();
        let mut steps: Vec<_> = self.expressions.iter().map(|text| {
            serde_json::json!({ "type": "Split", "pattern": { "Regex": text }, "behavior": "Isolated" })
        }).collect();
        steps.push(serde_json::json!({ "type": "ByteLevel", "use_regex": false }));
        json["pre_tokenizer"] = serde_json::json!({ "type": "Sequence", "pretokenizers": steps });
        if self.has_bos {
            json["post_processor"] = serde_json::json!({ "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": "a" } }, { "Sequence": { "id": "A" } }],
                "special_tokens": { "a": { "ids": [1978] } } });
        }
        Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
    }
}

#[test]
fn every_way_to_split_equals_its_tokenizer_json() {
    let json = probed();
    let mut seen = Vec::new();
    for kind in &KINDS {
        let theirs = kind.of_json(json.clone());
        let expected = theirs.encode_text(PROBE_TEXT).unwrap();
        assert_eq!(theirs.bos(), if kind.has_bos { &[1978][..] } else { &[] });
        for name in kind.names {
            let mut file = GgufFile::tiny();
            file.add_tokenizer(&json, name, 2100);
            file.set_u32("tokenizer.ggml.bos_token_id", 1978);
            let ours = of_metadata(&file);
            assert_eq!(ours.encode_text(PROBE_TEXT).unwrap(), expected, "{name}");
            assert_eq!(ours.bos(), theirs.bos(), "{name}");
        }
        assert!(!seen.contains(&expected), "the text does not tell {:?} from others", kind.names);
        seen.push(expected);
    }
}

#[test]
fn a_llama_tokenizer_begins_texts_and_takes_whole_words() {
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(bundled("tokenizer.json")).unwrap()).unwrap();
    let mut file = GgufFile::tiny();
    file.add_tokenizer(&json, "llama-bpe", 2048);
    file.set_u32("tokenizer.ggml.bos_token_id", 1978);
    assert_same_tokens(&of_metadata(&file), &KINDS[2].of_json(json));
    assert_eq!(of_metadata(&file).bos(), [1978]);
    file.set("tokenizer.ggml.add_bos_token", 7, &[0]);
    assert!(of_metadata(&file).bos().is_empty());
    // As Qwen3-Embedding's files.
    assert!(of_metadata(&file).eos().is_empty());
    file.set_u32("tokenizer.ggml.eos_token_id", 1980);
    assert!(of_metadata(&file).eos().is_empty());
    file.set("tokenizer.ggml.add_eos_token", 7, &[1]);
    assert_eq!(of_metadata(&file).eos(), [1980]);
}

/// The bounds of YaRN's ramp, in both spellings.
#[test]
fn yarn_s_ramp_has_the_bounds_of_the_metadata() {
    let mut file = GgufFile::tiny();
    file.set_text("qwen3.rope.scaling.type", "yarn");
    file.set_f32("qwen3.rope.scaling.factor", 4.0);
    file.set_u32("qwen3.rope.scaling.original_context_length", 32);
    file.set_f32("qwen3.rope.scaling.yarn_attn_factor", 1.5);
    file.set_f32("qwen3.rope.scaling.yarn_beta_fast", 24.0);
    file.set_f32("qwen3.rope.scaling.yarn_beta_slow", 2.0);
    let gguf = Gguf::from_bytes("input", file.bytes()).unwrap();
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 24.0,
        beta_slow: 2.0,
        original_positions: 32.0,
        attention_factor: 1.5,
        truncate: true,
    };
    assert_eq!(gguf.config().unwrap().rope.scaling, expected);
}

#[test]
fn a_model_opens_by_its_file_and_by_its_folder() {
    let model = Model::open(&path("chat.gguf")).unwrap();
    let bundled = Model::open(&bundled("")).unwrap();
    assert_eq!(model.stop_ids, bundled.stop_ids);
    assert_eq!(model.config.eos_ids, [1980]);
    assert_eq!(model.generation.temperature, Some(0.25));
    assert_eq!((model.generation.top_k, model.generation.top_p), (Some(20), Some(0.5)));
    assert!(model.template.is_some());
    assert!(model.config.tied_head);

    let folder = tempfile::tempdir().unwrap();
    fs::copy(path("chat.gguf"), folder.path().join("chat.gguf")).unwrap();
    let same = Model::open(folder.path()).unwrap();
    assert_eq!(same.fingerprint(""), model.fingerprint(""));
    fs::copy(path("chat.gguf"), folder.path().join("other.gguf")).unwrap();
    let error = Model::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("chat.gguf, other.gguf"), "{error}");
}

#[test]
fn parts_of_a_split_model_are_opened_together() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number| format!("qwen2-0000{number}-of-00002.gguf");
    let error = || match Gguf::open(&folder.path().join(part(1))) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    fs::copy(path(&part(1)), folder.path().join(part(1))).unwrap();
    assert!(error().contains(&format!("missing beside it: {}", part(2))), "{}", error());
    // The first part again, under the name of the second.
    fs::copy(path(&part(1)), folder.path().join(part(2))).unwrap();
    assert!(error().contains("says part 2 of 2, but its metadata says part 1 of 2"), "{}", error());
    fs::copy(path(&part(2)), folder.path().join(part(2))).unwrap();
    assert!(Gguf::open(&folder.path().join(part(1))).is_ok());
    let second = Gguf::open(&folder.path().join(part(2))).err().unwrap().to_string();
    assert!(second.contains("name the first part") && second.contains(&part(1)), "{second}");
    fs::rename(folder.path().join(part(1)), folder.path().join("renamed.gguf")).unwrap();
    let renamed = Gguf::open(&folder.path().join("renamed.gguf")).err().unwrap().to_string();
    assert!(renamed.contains("-00001-of-00002.gguf"), "{renamed}");
}
