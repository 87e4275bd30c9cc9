//! Models that weft quantises and writes are read back to the same codes, scales and words, and an
//! output has its name only if it is complete.
//!
//! That other programs read them was checked by hand, with the bundled model: transformers 5.22 and
//! compressed-tensors 0.20 decompress int8 and int4 to the values `code * scale` in f32 and answer
//! the demo question; llama.cpp's llama-bench and llama-perplexity load Q8_0 and Q4_0. All tensors
//! of both files have the bytes that convert_hf_to_gguf.py (told that the tokenizer splits as
//! qwen2) and `llama-quantize` write, for Q4_0 with `--output-tensor-type q8_0`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cap::Cap;
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize};
use weft_core::config::Config;
use weft_core::export::{ExportError, ExportForm, export};
use weft_core::model::{Model, Origin};
use weft_core::sampling::{GenerationConfig, Sampling};
use weft_core::weights::{
    Coded, Form, LayerTensor, Quantised, RandomWeights, Tensor, Weights, WriteError, tensors,
};

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

/// One test at a time, because all share the allocator.
static ALONE: Mutex<()> = Mutex::new(());

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny")
}

fn write(model: &Model, form: ExportForm, to: &Path) -> Result<u64, ExportError> {
    export(model, form, to, false, &|_, _| true)
}

/// The rows of a coded matrix, as text.
fn codes(weights: &dyn Weights, tensor: Tensor) -> Vec<String> {
    let mut rows = Vec::new();
    weights.read_coded(tensor, &mut |row, codes| rows.push(format!("{row} {codes:?}"))).unwrap();
    rows
}

fn values(weights: &dyn Weights, tensor: Tensor) -> Vec<f32> {
    let mut all = Vec::new();
    weights.read(tensor, &mut |_, row| all.extend_from_slice(row)).unwrap();
    all
}

#[test]
fn a_folder_has_the_codes_and_scales_of_the_quantiser() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&tiny()).unwrap();
    for (form, bits) in [(ExportForm::Int8, 8), (ExportForm::Int4, 4)] {
        let to = folder.path().join(form.to_string());
        write(&model, form, &to).unwrap();
        let read = Model::open(&to).unwrap();
        let quantised = Quantised::new(Model::open(&tiny()).unwrap().weights, Coded::int(bits));
        for shape in tensors(&model.config) {
            let tensor = shape.tensor;
            if matches!(tensor, Tensor::Layer(..)) && shape.shape.len() == 2 {
                assert_eq!(read.weights.form(tensor), Form::Coded(Coded::int(bits)));
                assert!(codes(&*read.weights, tensor) == codes(&quantised, tensor), "{tensor:?}");
            } else {
                let same = values(&*read.weights, tensor) == values(&*model.weights, tensor);
                assert!(same, "{tensor:?}");
            }
        }
        assert_eq!(read.stop_ids, model.stop_ids);
        for name in ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"] {
            assert_eq!(fs::read(to.join(name)).unwrap(), fs::read(tiny().join(name)).unwrap());
        }
    }
}

#[test]
fn a_gguf_file_has_the_config_the_words_and_the_template() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&tiny()).unwrap();
    let text = "Grüße! <|im_end|> 12 bridges,\n\n  and  a swan: <think>";
    for form in [ExportForm::Q8_0, ExportForm::Q4_0] {
        let to = folder.path().join(format!("{form}.gguf"));
        write(&model, form, &to).unwrap();
        let read = Model::open(&to).unwrap();
        assert_eq!(read.config, model.config);
        assert_eq!(read.stop_ids, model.stop_ids);
        let (ours, theirs) = (&read.tokenizer, &model.tokenizer);
        assert_eq!(ours.encode_text(text).unwrap(), theirs.encode_text(text).unwrap());
        assert_eq!(ours.encode_markup(text).unwrap(), theirs.encode_markup(text).unwrap());
        let template = |model: &Model| model.template.as_ref().unwrap().source().to_owned();
        assert_eq!(template(&read), template(&model));
        for shape in tensors(&model.config) {
            let (ours, plain) =
                (values(&*read.weights, shape.tensor), values(&*model.weights, shape.tensor));
            let most = plain.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
            let error = if shape.shape.len() == 1 { 0.0 } else { most / 7.0 };
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= error;
            assert!(ours.iter().zip(&plain).all(near), "{:?}", shape.tensor);
        }
        // What is quantised stays so.
        let again = folder.path().join("again");
        let refused = write(&read, ExportForm::Int4, &again).unwrap_err();
        assert!(matches!(refused, ExportError::Quantised { .. }), "{refused}");
    }
}

/// A GGUF file cannot say `do_sample`: a greedy model gets the temperature 0.
#[test]
fn a_gguf_file_has_the_settings_of_sampling() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::open(&tiny()).unwrap();
    for do_sample in [true, false] {
        model.generation = GenerationConfig {
            do_sample: Some(do_sample),
            temperature: Some(0.75),
            top_k: Some(5),
            top_p: Some(0.5),
            min_p: Some(0.25),
            repetition_penalty: Some(1.5),
            ..GenerationConfig::default()
        };
        let sampling = |generation: &GenerationConfig| {
            let mut sampling = Sampling::default();
            generation.apply(&mut sampling);
            sampling
        };
        let to = folder.path().join(format!("{do_sample}.gguf"));
        write(&model, ExportForm::Q8_0, &to).unwrap();
        let read = Model::open(&to).unwrap();
        assert_eq!(sampling(&read.generation), sampling(&model.generation));
    }
}

#[test]
fn an_output_has_its_name_only_if_it_is_complete() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let names = || fs::read_dir(folder.path()).unwrap().count();
    let model = Model::open(&tiny()).unwrap();
    for (form, name) in [(ExportForm::Int4, "int4"), (ExportForm::Q4_0, "q4.gguf")] {
        let to = folder.path().join(name);
        let before = names();
        let ended = export(&model, form, &to, false, &|done, total| done < total / 2);
        assert!(matches!(ended, Err(ExportError::Write(WriteError::Cancelled))));
        assert_eq!(names(), before, "nothing is left");
        write(&model, form, &to).unwrap();
        let refused = write(&model, form, &to).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        export(&model, form, &to, true, &|_, _| true).unwrap();
        assert_eq!(names(), before + 1);
        Model::open(&to).unwrap();
    }
    // A folder with other things is never replaced, and a form has its own kind of path.
    fs::create_dir(folder.path().join("int4/more")).unwrap();
    for (form, name) in [
        (ExportForm::Int4, "int4"),
        (ExportForm::Int4, "x.gguf"),
        (ExportForm::Q4_0, "x"),
        (ExportForm::Int4, "absent/x"),
    ] {
        let refused = export(&model, form, &folder.path().join(name), true, &|_, _| true);
        assert!(matches!(refused, Err(ExportError::Target { .. })), "{name}");
    }
    let itself = export(&model, ExportForm::Int4, &tiny(), true, &|_, _| true).unwrap_err();
    assert!(itself.to_string().contains("that is read"), "{itself}");
}

#[test]
fn memory_is_bounded_by_the_largest_tensor() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let mut tiny_config = Model::open(&tiny()).unwrap().config;
    tiny_config.layers = 60;
    let tokenizer = Model::open(&tiny()).unwrap().tokenizer;
    let model =
        Model { origin: Origin::Folder(tiny()), ..Model::random(tiny_config, 1, tokenizer) };
    let total: usize = tensors(&model.config).iter().map(|shape| 4 * shape.elements()).sum();
    let limit = 60 << 20;
    assert!(total > 3 * limit);
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + limit).unwrap();
    for (form, name) in [(ExportForm::Int8, "int8"), (ExportForm::Q8_0, "q8.gguf")] {
        write(&model, form, &folder.path().join(name)).unwrap();
    }
    ALLOCATOR.set_limit(usize::MAX).unwrap();
}

/// A folder with a mixture of experts and the words of the bundled model.
fn write_sparse(folder: &Path, normalised: bool) -> Model {
    for name in ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"] {
        fs::copy(tiny().join(name), folder.join(name)).unwrap();
    }
    let vocab = Model::open(&tiny()).unwrap().config.vocab;
    let json = format!(
        r#"{{"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "intermediate_size": 96, "vocab_size": {vocab}, "max_position_embeddings": 512,
            "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "norm_topk_prob": {normalised}, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}}"#
    );
    fs::write(folder.join("config.json"), &json).unwrap();
    let config = Config::from_json(json.as_bytes()).unwrap();
    let (random, mut parts) = (RandomWeights::new(&config, 3), Vec::new());
    for shape in tensors(&config) {
        let bytes: Vec<u8> = values(&random, shape.tensor)
            .into_iter()
            .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
            .collect();
        let in_files = shape.in_files();
        let pieces = bytes.chunks_exact(bytes.len() / in_files.len()).map(<[u8]>::to_vec);
        parts.extend(in_files.into_iter().zip(pieces.collect::<Vec<_>>()));
    }
    let mut views = Vec::new();
    for ((name, shape), bytes) in &parts {
        let view = TensorView::new(FileDtype::BF16, shape.clone(), bytes).unwrap();
        views.push((name.clone(), view));
    }
    fs::write(folder.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    Model::open(folder).unwrap()
}

/// Experts are written one by one to a folder and together to a GGUF file, and routers stay plain.
#[test]
fn experts_have_the_codes_of_the_quantiser() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let model = write_sparse(folder.path(), true);
    let to = folder.path().join("int4");
    write(&model, ExportForm::Int4, &to).unwrap();
    let read = Model::open(&to).unwrap();
    let quantised = Quantised::new(Model::open(folder.path()).unwrap().weights, Coded::int(4));
    for shape in tensors(&model.config) {
        let tensor = shape.tensor;
        let is_router = matches!(tensor, Tensor::Layer(_, LayerTensor::Router));
        if matches!(tensor, Tensor::Layer(..)) && shape.shape.len() > 1 && !is_router {
            assert!(codes(&*read.weights, tensor) == codes(&quantised, tensor), "{tensor:?}");
        } else {
            let same = values(&*read.weights, tensor) == values(&*model.weights, tensor);
            assert!(same, "{tensor:?}");
        }
    }
    let to = folder.path().join("q8_0.gguf");
    write(&model, ExportForm::Q8_0, &to).unwrap();
    let read = Model::open(&to).unwrap();
    assert_eq!(read.config.experts, model.config.experts);
    for shape in tensors(&model.config) {
        let (ours, plain) =
            (values(&*read.weights, shape.tensor), values(&*model.weights, shape.tensor));
        let is_router = matches!(shape.tensor, Tensor::Layer(_, LayerTensor::Router));
        let most = plain.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
        let error = if shape.shape.len() == 1 || is_router { 0.0 } else { most / 127.0 };
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= error;
        assert!(ours.iter().zip(&plain).all(near), "{:?}", shape.tensor);
    }
    let others = tempfile::tempdir().unwrap();
    let model = write_sparse(others.path(), false);
    let refused = write(&model, ExportForm::Q8_0, &others.path().join("x.gguf")).unwrap_err();
    assert!(refused.to_string().contains("do not sum to 1"), "{refused}");
}
