//! Mixtures of experts in files: each expert's values are those of the same matrix in a dense
//! model, in every packed format, in one tensor or in many. Configs and files that cannot be run
//! say why.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use weft_core::config::Config;
use weft_core::weights::{Form, Gguf, LayerTensor as T, Safetensors, Tensor, Weights, tensors};
use weft_testing::golden::Golden;

fn in_tests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

fn values(weights: &dyn Weights, tensor: Tensor) -> Vec<f32> {
    let mut values = Vec::new();
    weights.read(tensor, &mut |_, row| values.extend_from_slice(row)).unwrap();
    values
}

/// The same, from codes.
fn coded_values(weights: &dyn Weights, tensor: Tensor) -> Vec<f32> {
    let Form::Coded(coded) = weights.form(tensor) else { return values(weights, tensor) };
    let (table, mut values) = (coded.code.values(), Vec::new());
    let mut push = |_: usize, row: &weft_core::weights::CodedRow<'_>| {
        let mut widened = vec![0.0; row.codes.len()];
        row.widen(coded.group, &table, &mut widened);
        values.extend(widened);
    };
    weights.read_coded(tensor, &mut push).unwrap();
    values
}

/// A tensor of a file.
#[derive(Clone)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type Entries = BTreeMap<String, Entry>;

fn read(path: &Path) -> Entries {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let entry = |view: &TensorView<'_>| Entry {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors().into_iter().map(|(name, view)| (name, entry(&view))).collect()
}

fn open(entries: &Entries, config: &Config) -> Result<Safetensors, String> {
    let mut views = Vec::new();
    for (name, entry) in entries {
        let view = TensorView::new(entry.dtype, entry.shape.clone(), &entry.bytes).unwrap();
        views.push((name.clone(), view));
    }
    let bytes = serialize(views, None).unwrap();
    Safetensors::from_bytes("experts", Cow::Owned(bytes), config).map_err(|e| e.to_string())
}

fn plain(shape: &[usize], value: u16) -> Entry {
    let bytes = value.to_le_bytes().repeat(shape.iter().product());
    Entry { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
}

/// A dense packed model whose codes in the MLP are moved by some bytes, so that experts differ.
fn moved(entries: &Entries, by: usize) -> Entries {
    let mut entries = entries.clone();
    for (name, entry) in &mut entries {
        let is_code = [".weight", ".qweight", ".weight_packed"].iter().any(|s| name.ends_with(s));
        if name.contains(".mlp.") && is_code && entry.shape.len() == 2 {
            let by = 16 * by % entry.bytes.len();
            entry.bytes.rotate_left(by);
        }
    }
    entries
}

const N_EXPERTS: usize = 3;

/// A dense packed model, and a mixture of experts whose experts are its MLP, each moved.
fn sparse(folder: &Path) -> ((Config, Entries), (Config, Entries)) {
    let json = fs::read_to_string(folder.join("config.json")).unwrap();
    // Names of matrices that are experts' now.
    let mut json = json.replace(r"mlp\\.", r"mlp\\..*");
    for kind in ["gate_proj", "up_proj", "down_proj"] {
        let name = |of: &str| format!("\"model.layers.0.mlp.{of}{kind}\"");
        let experts = (0..N_EXPERTS).map(|expert| name(&format!("experts.{expert}.")));
        let all: Vec<String> = [name("")].into_iter().chain(experts).collect();
        json = json.replace(&name(""), &all.join(", "));
    }
    let mut keys: Value = serde_json::from_str(&json).unwrap();
    let beside = folder.join("hf_quant_config.json");
    if beside.exists() {
        let about: Value = serde_json::from_slice(&fs::read(beside).unwrap()).unwrap();
        let mut about = about["quantization"].clone();
        about["quant_method"] = json!("modelopt");
        keys["quantization_config"] = about;
    }
    keys["model_type"] = json!("qwen3");
    let config = |keys: &Value| Config::from_json(keys.to_string().as_bytes()).unwrap();
    let dense = config(&keys);
    let mut entries = read(&folder.join("model.safetensors"));
    entries.retain(|name, _| !name.contains("self_attn") || !name.ends_with(".bias"));
    for norm in ["q_norm", "k_norm"] {
        let name = format!("model.layers.0.self_attn.{norm}.weight");
        entries.entry(name).or_insert_with(|| plain(&[dense.head_dim], 0x3f80));
    }
    keys["model_type"] = json!("qwen3_moe");
    keys["num_experts"] = json!(N_EXPERTS);
    keys["num_experts_per_tok"] = json!(2);
    keys["moe_intermediate_size"] = json!(dense.intermediate);
    let mut experts = entries.clone();
    experts.retain(|name, _| !name.contains(".mlp."));
    for expert in 0..N_EXPERTS {
        for (name, entry) in moved(&entries, expert) {
            if let Some((before, after)) = name.split_once(".mlp.") {
                experts.insert(format!("{before}.mlp.experts.{expert}.{after}"), entry);
            }
        }
    }
    let router = plain(&[N_EXPERTS, dense.hidden], 0x3e80);
    experts.insert("model.layers.0.mlp.gate.weight".to_owned(), router);
    ((dense, entries), (config(&keys), experts))
}

#[test]
fn packed_experts_have_the_values_of_packed_matrices() {
    let mut n_coded = 0;
    for entry in fs::read_dir(in_tests("packed")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.display();
        let ((dense_config, dense), (config, experts)) = sparse(&folder);
        let opened = open(&experts, &config).unwrap_or_else(|error| panic!("{name}: {error}"));
        let router = Tensor::Layer(0, T::Router);
        assert_eq!(opened.form(router), Form::Plain);
        assert!(values(&opened, router).iter().all(|value| *value == 0.25));
        for (of_experts, of_one) in
            [(T::ExpertGate, T::Gate), (T::ExpertUp, T::Up), (T::ExpertDown, T::Down)]
        {
            let (tensor, of_one) = (Tensor::Layer(0, of_experts), Tensor::Layer(0, of_one));
            let mut expected = Vec::new();
            for expert in 0..N_EXPERTS {
                let one = open(&moved(&dense, expert), &dense_config).unwrap();
                assert_eq!(one.form(of_one), opened.form(tensor), "{name} {of_experts:?}");
                expected.extend(values(&one, of_one));
            }
            assert!(values(&opened, tensor) == expected, "{name} {of_experts:?}");
            let off = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 * b.abs();
            let coded = coded_values(&opened, tensor);
            assert!(!coded.iter().zip(&expected).any(off), "{name} {of_experts:?}, codes");
            n_coded += usize::from(opened.form(tensor) != Form::Plain);
        }
    }
    assert!(n_coded > 40, "{n_coded}");
}

/// GPTQ leaves zeros out if they are all in the middle. Some experts may, and others not.
#[test]
fn experts_with_and_without_zeros_have_one_form() {
    let ((dense_config, dense), (config, mut experts)) = sparse(&in_tests("packed/gptq_v2"));
    let middle = |entries: &mut Entries, name: &str| {
        let entry = entries.get_mut(name).unwrap();
        entry.bytes.fill(0x88);
    };
    middle(&mut experts, "model.layers.0.mlp.experts.1.gate_proj.qzeros");
    let opened = open(&experts, &config).unwrap();
    let mut expected = Vec::new();
    for expert in 0..N_EXPERTS {
        let mut one = moved(&dense, expert);
        if expert == 1 {
            middle(&mut one, "model.layers.0.mlp.gate_proj.qzeros");
        }
        let one = open(&one, &dense_config).unwrap();
        expected.extend(values(&one, Tensor::Layer(0, T::Gate)));
    }
    let tensor = Tensor::Layer(0, T::ExpertGate);
    assert!(matches!(opened.form(tensor), Form::Coded(_)));
    assert!(values(&opened, tensor) == expected);
    assert!(coded_values(&opened, tensor) == expected);

    // A plain one among coded ones makes all of them plain.
    let name = "model.layers.0.mlp.experts.2.gate_proj";
    experts.retain(|known, _| !known.starts_with(name));
    let shape = [config.intermediate, config.hidden];
    experts.insert(format!("{name}.weight"), plain(&shape, 0x3f00));
    let opened = open(&experts, &config).unwrap();
    assert_eq!(opened.form(tensor), Form::Plain);
    let found = values(&opened, tensor);
    let two = 2 * config.intermediate * config.hidden;
    assert!(found[..two] == expected[..two] && found[two..].iter().all(|value| *value == 0.5));
}

/// The layout in which transformers computes gives the same values as one tensor for each expert.
#[test]
fn experts_in_one_tensor_are_those_of_many() {
    let golden = Golden::open("qwen3_moe_ties");
    let fused = golden.weights();
    let mut entries = read(&in_tests("golden/qwen3_moe_ties/model.safetensors"));
    let experts = golden.config.experts.clone().unwrap();
    let names: Vec<String> =
        entries.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    assert_eq!(names.len(), 2, "one sparse layer");
    for name in names {
        let whole = entries.remove(&name).unwrap();
        let (prefix, kind) = name.rsplit_once('.').unwrap();
        let parts: &[&str] = match kind {
            "gate_up_proj" => &["gate_proj", "up_proj"],
            _ => &["down_proj"],
        };
        let shape = [whole.shape[1] / parts.len(), whole.shape[2]];
        let mut pieces = whole.bytes.chunks_exact(2 * shape[0] * shape[1]);
        for expert in 0..experts.count {
            for part in parts {
                let bytes = pieces.next().unwrap().to_vec();
                let entry = Entry { dtype: whole.dtype, shape: shape.to_vec(), bytes };
                entries.insert(format!("{prefix}.{expert}.{part}.weight"), entry);
            }
        }
    }
    let many = open(&entries, &golden.config).unwrap();
    for shape in tensors(&golden.config) {
        let (a, b) = (values(&fused, shape.tensor), values(&many, shape.tensor));
        assert!(a.len() == shape.elements() && a == b, "{:?}", shape.tensor);
        let rows = shape.rows();
        let (mut part, range) = (Vec::new(), rows / 3..(rows / 3 + 30).min(rows));
        let keep = &mut |_: usize, row: &[f32]| part.extend_from_slice(row);
        many.read_rows(shape.tensor, range.clone(), keep).unwrap();
        assert!(part == a[range.start * shape.row()..range.end * shape.row()]);
    }
}

#[test]
fn a_broken_expert_is_named() {
    let (_, (config, experts)) = sparse(&in_tests("packed/fp8_block"));
    let error = |change: &dyn Fn(&mut Entries)| {
        let mut entries = experts.clone();
        change(&mut entries);
        match open(&entries, &config) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error,
        }
    };
    let name = |expert: usize| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    let missing = error(&|entries| drop(entries.remove(&name(2))));
    assert!(missing.contains(&name(2)) && missing.contains("missing"), "{missing}");
    let surplus = error(&|entries| drop(entries.insert(name(3), plain(&[1, 1], 0))));
    assert!(surplus.contains(&name(3)) && surplus.contains("not part"), "{surplus}");
    let shape = error(&|entries| drop(entries.insert(name(1), plain(&[8, 8], 0))));
    assert!(shape.contains(&name(1)), "{shape}");
    let router = "model.layers.0.mlp.gate.weight".to_owned();
    let none = error(&|entries| drop(entries.remove(&router)));
    assert!(none.contains(&router), "{none}");
    let fused = "model.layers.0.mlp.experts.gate_up_proj".to_owned();
    let wrong = error(&|entries| drop(entries.insert(fused.clone(), plain(&[3, 1, 1], 0))));
    assert!(wrong.contains(&fused) && wrong.contains("[3, 128, 160]"), "{wrong}");

    let mut entries = experts.clone();
    let infinite = plain(&[config.intermediate, config.hidden], 0x7f80);
    entries.retain(|known, _| !known.starts_with("model.layers.0.mlp.experts.1.up_proj"));
    entries.insert(name(1), infinite);
    let opened = open(&entries, &config).unwrap();
    let read = opened.read(Tensor::Layer(0, T::ExpertUp), &mut |_, _| {});
    let error = read.unwrap_err().to_string();
    assert!(error.contains(&name(1)) && error.contains("row 0"), "{error}");
}

#[test]
fn gguf_experts_have_the_values_of_gguf_py() {
    let gguf = Gguf::open(&in_tests("gguf/moe.gguf")).unwrap();
    let config = gguf.config().unwrap();
    let experts = config.experts.clone().unwrap();
    assert_eq!((experts.count, experts.chosen, experts.intermediate), (3, 2, 32));
    assert!(experts.normalised && config.qk_norm && config.dense_width() == 0);
    let weights = gguf.weights(&config).unwrap();
    let truth = fs::read(in_tests("gguf/moe.truth")).unwrap();
    let mut truth = truth.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let mut n_coded = 0;
    assert_eq!(weights.form(Tensor::Layer(0, T::Router)), Form::Plain);
    for kind in [T::ExpertGate, T::ExpertUp, T::ExpertDown] {
        let tensor = Tensor::Layer(0, kind);
        let ours = values(&weights, tensor);
        let theirs: Vec<f32> = truth.by_ref().take(ours.len()).collect();
        assert!(ours == theirs, "{tensor:?}");
        assert!(coded_values(&weights, tensor) == theirs, "{tensor:?}");
        n_coded += usize::from(weights.form(tensor) != Form::Plain);
    }
    assert_eq!((truth.next(), n_coded), (None, 2));
}

/// Configs that cannot be run, and the words in their errors.
const BROKEN: [(&str, &str, &[&str]); 13] = [
    ("num_experts", "absent", &["num_experts", "qwen3_moe"]),
    ("num_experts", "0", &["num_experts", "is 0", "1 to 1024"]),
    ("num_experts", "100000", &["num_experts", "100000", "1024"]),
    ("num_experts", "-3", &["not valid"]),
    ("num_experts_per_tok", "absent", &["num_experts_per_tok"]),
    ("num_experts_per_tok", "0", &["num_experts_per_tok", "1 to 8"]),
    ("num_experts_per_tok", "9", &["num_experts_per_tok", "is 9", "1 to 8"]),
    ("moe_intermediate_size", "absent", &["moe_intermediate_size"]),
    ("moe_intermediate_size", "18446744073709551615", &["moe_intermediate_size", "131072"]),
    ("decoder_sparse_step", "0", &["decoder_sparse_step", "1 to 1024"]),
    ("mlp_only_layers", "[-1]", &["not valid"]),
    ("mlp_only_layers", "7", &["not valid"]),
    ("norm_topk_prob", "2", &["not valid"]),
];

fn config(key: &str, value: &str) -> Result<Config, String> {
    let mut keys = json!({
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 512,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    });
    match value {
        "absent" => drop(keys.as_object_mut().unwrap().remove(key)),
        _ => keys[key] = serde_json::from_str(value).unwrap(),
    }
    Config::from_json(keys.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_config_of_experts_that_cannot_be_run_says_why() {
    for (key, value, expected) in BROKEN {
        let error = config(key, value).expect_err(key);
        for words in expected {
            assert!(error.contains(words), "{key} = {value}: {error}");
        }
    }
    let long = format!("[{}0]", "0, ".repeat(2000));
    assert!(config("mlp_only_layers", &long).unwrap_err().contains("2001 layers"));
}

#[test]
fn keys_of_experts_have_the_defaults_of_transformers() {
    let sparse = |key: &str, value: &str| {
        let config = config(key, value).unwrap();
        (0..4).filter(|layer| config.experts_of(*layer).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(sparse("decoder_sparse_step", "absent"), [0, 1, 2, 3]);
    assert_eq!(sparse("decoder_sparse_step", "2"), [1, 3]);
    assert_eq!(sparse("mlp_only_layers", "[0, 3, 77]"), [1, 2]);
    assert_eq!(sparse("mlp_only_layers", "null"), [0, 1, 2, 3]);
    assert!(!config("norm_topk_prob", "absent").unwrap().experts.unwrap().normalised);
    assert!(config("norm_topk_prob", "true").unwrap().experts.unwrap().normalised);
    // transformers 5 writes another name for the number of experts.
    let renamed = config("num_local_experts", "9").unwrap();
    assert_eq!(renamed.experts.unwrap().count, 8, "the older name wins");
}
