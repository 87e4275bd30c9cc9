//! Packed safetensors by the formats' own tools: every value is the tool's, to the last bit. Broken
//! and hostile ones give a clear error, never a panic, and never use much memory.
//!
//! `tools/golden_packed.py` wrote the models and the hashes of their dequantised rows.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors::tensor::{Dtype as FileDtype, SafeTensors, TensorView};
use weft_core::config::Config;
use weft_core::plan::plan;
use weft_core::reference::Reference;
use weft_core::weights::{
    Code, Form, LayerTensor, Offset, Safetensors, Scale, Tensor, TensorShape, Weights,
    WeightsError, tensors,
};
use weft_testing::{LIMITS, Work, max_difference, run, span};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed").join(name)
}

fn all() -> Vec<String> {
    let entries = fs::read_dir(folder("")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn open(folder: &Path) -> Result<(Config, Safetensors), String> {
    let config = Config::from_file(&folder.join("config.json")).map_err(|e| e.to_string())?;
    let weights = Safetensors::open(folder, &config).map_err(|e| e.to_string())?;
    Ok((config, weights))
}

/// FNV-1a of the bits of each row.
fn hash(values: &[f32]) -> String {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[test]
fn every_value_is_that_of_the_format_s_own_tool() {
    assert_eq!(all().len(), 20, "{:?}", all());
    for name in all() {
        let (config, weights) = open(&folder(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let truth = fs::read(folder(&name).join("truth.json")).unwrap();
        let truth: BTreeMap<String, Vec<String>> = serde_json::from_slice(&truth).unwrap();
        let shapes = tensors(&config);
        assert_eq!(truth.len(), shapes.len(), "{name}");
        for shape in shapes {
            let expected = &truth[&shape.tensor.name()];
            let mut rows = 0;
            let mut check = |row: usize, values: &[f32]| {
                assert_eq!(row, rows);
                let place = format!("{name} {} row {row}", shape.tensor.name());
                assert_eq!(hash(values), expected[row], "{place}: {:?}", &values[..16]);
                rows += 1;
            };
            weights.read(shape.tensor, &mut check).unwrap();
            assert_eq!(rows, expected.len(), "{name}");
        }
    }
}

/// The codes and scales are the values, up to the last rounding of bitsandbytes' bytes.
#[test]
fn codes_and_scales_give_the_values() {
    for name in all() {
        let (config, weights) = open(&folder(&name)).unwrap();
        for TensorShape { tensor, shape } in tensors(&config) {
            let Form::Coded(coded) = weights.form(tensor) else { continue };
            let mut rows = Vec::new();
            weights.read(tensor, &mut |_, values| rows.push(values.to_vec())).unwrap();
            let codes = coded.code.values();
            let mut widened = vec![0.0; shape[1]];
            let mut seen = 0;
            weights
                .read_coded(tensor, &mut |row, from| {
                    assert_eq!(from.codes.len(), shape[1]);
                    assert_eq!(from.scales.units.len(), coded.n_groups(shape[1]), "{name}");
                    from.widen(coded.group, &codes, &mut widened);
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-7 * a.abs();
                    match name.as_str() {
                        "bnb_int8" => assert!(widened.iter().zip(&rows[row]).all(near)),
                        _ => assert_eq!(widened, rows[row], "{name} {tensor:?} {row}"),
                    }
                    seen += 1;
                })
                .unwrap();
            assert_eq!(seen, shape[0]);
        }
    }
}

/// The same values without codes.
struct Widened(Safetensors);

impl Weights for Widened {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.0.read(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint()
    }
}

#[test]
fn packed_models_have_the_logits_of_their_values() {
    for name in all() {
        let (config, weights) = open(&folder(&name)).unwrap();
        let logits = |weights: &dyn Weights| {
            let mut device = Reference::<f32>::new(&config, weights, LIMITS).unwrap();
            let work = Work::new(&[1, 5, 2, 7, 3], 0, Vec::new(), span(2, 5, 0));
            run(&mut device, &plan(&config), &[work]).concat()
        };
        let (ours, theirs) = (logits(&weights), logits(&Widened(weights)));
        let largest = theirs.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let difference = max_difference(&ours, &theirs);
        assert!(largest > 0.1 && difference < 1e-5 * largest, "{name}: {difference} {largest}");
    }
}

#[test]
fn forms_are_as_small_as_the_files() {
    use weft_core::weights::LayerTensor as T;
    let int = |bits| Code::Int { bits };
    let uint = |bits| Code::Uint { bits };
    let expected = [
        ("fp8_block", T::Q, Code::Fp8, 128, Scale::Bf16, Offset::None),
        ("fp8_block", T::K, Code::Fp8, 128, Scale::F16, Offset::None),
        ("fp8_block", T::V, Code::Fp8, 128, Scale::F32, Offset::None),
        ("fp8_tensor", T::Q, Code::Fp8, 160, Scale::F32, Offset::None),
        ("ct_float", T::Q, Code::Fp8, 160, Scale::Bf16, Offset::None),
        ("ct_float", T::Gate, Code::Fp8, 128, Scale::Bf16, Offset::None),
        ("ct_float", T::Down, Code::Fp8, 64, Scale::Bf16, Offset::None),
        ("ct_int8", T::Q, int(8), 160, Scale::F32, Offset::None),
        ("ct_int4", T::Q, int(4), 32, Scale::Bf16, Offset::None),
        ("ct_int4", T::Gate, int(8), 160, Scale::Bf16, Offset::None),
        ("ct_zeros", T::Q, uint(4), 32, Scale::F16, Offset::Zero),
        ("ct_zeros", T::Down, int(8), 64, Scale::F16, Offset::Zero),
        ("ct_actorder", T::Q, uint(4), 32, Scale::Bf16, Offset::Zero),
        ("awq", T::Q, uint(4), 32, Scale::F16, Offset::Zero),
        ("gptq_v1", T::Q, int(4), 32, Scale::F16, Offset::None),
        ("gptq_v1", T::Down, int(8), 64, Scale::F16, Offset::None),
        ("gptq_v2", T::Q, uint(4), 32, Scale::F16, Offset::Zero),
        ("gptq_v2", T::Down, int(8), 64, Scale::F16, Offset::Zero),
        ("gptq_order", T::K, uint(4), 32, Scale::F16, Offset::Zero),
        ("bnb_int8", T::Q, int(8), 160, Scale::F32, Offset::None),
    ];
    for (name, kind, code, group, scale, offset) in expected {
        let (_, weights) = open(&folder(name)).unwrap();
        let Form::Coded(form) = weights.form(Tensor::Layer(0, kind)) else {
            panic!("{name} {kind:?} is plain")
        };
        assert_eq!((form.code, form.group, form.scale, form.offset), (code, group, scale, offset));
    }
    for (name, kind, group) in [
        ("ct_nvfp4", T::Q, 16),
        ("ct_mxfp4", T::Q, 32),
        ("bnb_nf4", T::Q, 32),
        ("bnb_fp4", T::Down, 64),
    ] {
        let (_, weights) = open(&folder(name)).unwrap();
        let Form::Coded(form) = weights.form(Tensor::Layer(0, kind)) else { panic!("{name}") };
        assert!(matches!(form.code, Code::Table(_)));
        assert_eq!(form.group, group, "{name}");
    }
    // Groups that are not contiguous are widened; ignored modules and embeddings are plain.
    for (name, kind) in [("ct_actorder", T::K), ("gptq_order", T::Q), ("ct_int4", T::Down)] {
        assert_eq!(open(&folder(name)).unwrap().1.form(Tensor::Layer(0, kind)), Form::Plain);
    }
    for name in all() {
        let (_, weights) = open(&folder(&name)).unwrap();
        for tensor in [Tensor::Embed, Tensor::Head, Tensor::FinalNorm] {
            assert_eq!(weights.form(tensor), Form::Plain, "{name}");
        }
    }
}

type Tensors = BTreeMap<String, (FileDtype, Vec<usize>, Vec<u8>)>;

/// A copy of a model whose tensors a test changes.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    let bytes = fs::read(folder(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let copy = tempfile::tempdir().unwrap();
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    for file in ["config.json", "hf_quant_config.json"] {
        let _ = fs::copy(folder(name).join(file), copy.path().join(file));
    }
    copy
}

/// Early GPTQ and AWQ models say in a separate file how they are packed.
#[test]
fn a_file_beside_the_config_may_say_how_weights_are_packed() {
    for (name, file) in [("gptq_v1", "quantize_config.json"), ("awq", "quant_config.json")] {
        let copy = changed(name, |_| {});
        let path = copy.path().join("config.json");
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let mut packing = config.as_object_mut().unwrap().remove("quantization_config").unwrap();
        packing.as_object_mut().unwrap().remove("quant_method").unwrap();
        fs::write(&path, config.to_string()).unwrap();
        assert!(open(copy.path()).is_err(), "{name}: nothing says how it is packed");
        fs::write(copy.path().join(file), packing.to_string()).unwrap();
        let opened = [copy.path(), &folder(name)].map(|at| open(at).unwrap());
        let forms = opened.map(|(_, weights)| weights.form(Tensor::Layer(0, LayerTensor::Up)));
        assert!(forms[0] == forms[1] && forms[0] != Form::Plain, "{name}: {forms:?}");
    }
}

/// Each tensor of a matrix is needed, and the error names it.
#[test]
fn a_missing_tensor_is_named() {
    const SIDES: &[(&str, &[&str])] = &[
        ("fp8_block", &["weight", "weight_scale_inv"]),
        ("fp8_tensor", &["weight", "weight_scale"]),
        ("ct_float", &["weight", "weight_scale"]),
        ("ct_int8", &["weight", "weight_scale"]),
        ("ct_int4", &["weight_packed", "weight_scale", "weight_shape"]),
        ("ct_zeros", &["weight_packed", "weight_scale", "weight_shape", "weight_zero_point"]),
        ("ct_nvfp4", &["weight_packed", "weight_scale", "weight_global_scale"]),
        ("ct_mxfp4", &["weight_packed", "weight_scale"]),
        ("ct_mxfp8", &["weight", "weight_scale"]),
        ("awq", &["qweight", "qzeros", "scales"]),
        ("gptq_v1", &["qweight", "qzeros", "scales"]),
        ("bnb_nf4", &["weight", "weight.absmax", "weight.quant_map"]),
        ("bnb_nf4", &["weight.quant_state.bitsandbytes__nf4"]),
        ("bnb_fp4", &["weight.nested_absmax", "weight.nested_quant_map"]),
        ("bnb_int8", &["weight"]),
        ("modelopt_fp8", &["weight", "weight_scale"]),
        ("modelopt_nvfp4", &["weight", "weight_scale", "weight_scale_2"]),
    ];
    for (name, sides) in SIDES {
        for side in *sides {
            let missing = format!("model.layers.0.mlp.up_proj.{side}");
            let copy = changed(name, |tensors| drop(tensors.remove(&missing).unwrap()));
            let error = open(copy.path()).err().unwrap_or_else(|| panic!("{name} {side} opened"));
            assert!(error.contains(&format!("`{missing}` is missing")), "{name}: {error}");
        }
    }
}

/// Every tensor of every fixture, changed in shape, in format, and in one byte.
#[test]
fn a_wrong_shape_or_format_is_refused_and_a_changed_byte_changes_the_fingerprint() {
    for name in all() {
        let first = open(&folder(&name)).unwrap().1.fingerprint();
        let mut names = Vec::new();
        changed(&name, |tensors| names.extend(tensors.keys().cloned()));
        for tensor in names.iter().filter(|tensor| tensor.contains("up_proj")) {
            if tensor.ends_with("input_scale") || tensor.ends_with(".bias") {
                continue;
            }
            let copy = changed(&name, |tensors| {
                let (_, shape, _) = tensors.get_mut(tensor).unwrap();
                shape.push(1);
                shape.insert(0, 1);
                shape.insert(0, 1);
            });
            let error = open(copy.path()).err();
            assert!(error.is_some(), "{name} {tensor} opened in another shape");
            let copy = changed(&name, |tensors| {
                let (dtype, shape, data) = tensors.get_mut(tensor).unwrap();
                (*dtype, *shape) = (FileDtype::BOOL, vec![data.len()]);
            });
            let error = open(copy.path()).err();
            assert!(error.is_some(), "{name} {tensor} opened in another format");
            let copy = changed(&name, |tensors| {
                let (_, _, data) = tensors.get_mut(tensor).unwrap();
                let last = data.len() - 1;
                data[last] ^= 1;
            });
            if let Ok((_, weights)) = open(copy.path()) {
                let said = tensor.ends_with("g_idx") || tensor.contains("quant_state");
                assert!(said || weights.fingerprint() != first, "{name} {tensor}");
            }
        }
    }
}

/// Both formats have the same tensors, and count their zeros differently.
#[test]
fn the_same_bytes_in_another_format_have_another_fingerprint() {
    let path = folder("gptq_v1");
    let text = fs::read_to_string(path.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut fingerprint = |format: &str| {
        config["quantization_config"]["checkpoint_format"] = format.into();
        let config = Config::from_json(config.to_string().as_bytes()).unwrap();
        Safetensors::open(&path, &config).unwrap().fingerprint()
    };
    assert_eq!(fingerprint("gptq"), open(&path).unwrap().1.fingerprint());
    assert_ne!(fingerprint("gptq_v2"), fingerprint("gptq"));
}

/// Opens a model and reads all of it.
fn load(folder: &Path) -> Result<usize, String> {
    let (config, weights) = open(folder)?;
    let mut elements = 0;
    for TensorShape { tensor, .. } in tensors(&config) {
        weights.read(tensor, &mut |_, row| elements += row.len()).map_err(|e| e.to_string())?;
        if weights.form(tensor) != Form::Plain {
            weights.read_coded(tensor, &mut |_, _| {}).map_err(|e| e.to_string())?;
        }
    }
    Ok(elements)
}

/// A model with a change in one tensor is refused, and the message has all these parts.
fn assert_refused(name: &str, tensor: &str, change: fn(&mut Vec<u8>), expected: &[&str]) {
    let tensor = format!("model.layers.0.mlp.up_proj.{tensor}");
    let copy = changed(name, |tensors| change(&mut tensors.get_mut(&tensor).unwrap().2));
    let error = load(copy.path()).expect_err("a broken model was loaded");
    for part in expected {
        assert!(error.contains(part), "{name}: `{error}` does not say `{part}`");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let damaged = &["up_proj", "download it again"];
    // A code that is NaN, scales that are infinite or make values so, and no global scale.
    assert_refused("fp8_block", "weight", |bytes| bytes[161] = 0x7f, damaged);
    assert_refused("fp8_block", "weight", |bytes| bytes[161] = 0xff, damaged);
    let infinite: fn(&mut Vec<u8>) =
        |bytes| bytes[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert_refused("fp8_tensor", "weight_scale", infinite, damaged);
    let large: fn(&mut Vec<u8>) = |bytes| bytes[..4].copy_from_slice(&1e37_f32.to_le_bytes());
    assert_refused("fp8_tensor", "weight_scale", large, damaged);
    assert_refused("ct_mxfp4", "weight_scale", |bytes| bytes[3] = 255, damaged);
    assert_refused("ct_mxfp4", "weight_scale", |bytes| bytes[3] = 254, damaged);
    assert_refused("ct_nvfp4", "weight_global_scale", |bytes| bytes.fill(0), damaged);
    assert_refused("bnb_nf4", "weight.quant_map", infinite, damaged);
    assert_refused("bnb_fp4", "weight.nested_absmax", infinite, damaged);
    assert_refused("awq", "scales", |bytes| bytes[..2].fill(0xff), damaged);
    // What contradicts the config.
    assert_refused("ct_int4", "weight_shape", |bytes| bytes[0] = 1, &["weight_shape", "[64, 160]"]);
    assert_refused("gptq_order", "g_idx", |bytes| bytes[0] = 5, &["g_idx", "group 5", "are 5"]);
    assert_refused("gptq_order", "g_idx", |bytes| bytes[..4].fill(0xff), &["group -1"]);
    assert_refused("gptq_order", "qzeros", |bytes| bytes[0] = 0xff, &["row 0", "gptq_v2"]);
    assert_refused("gptq_v1", "bias", |bytes| bytes[0] = 1, &["up_proj.bias", "not part"]);
    let state = "weight.quant_state.bitsandbytes__nf4";
    assert_refused("bnb_nf4", state, |bytes| bytes[0] = b'!', &[state]);
}

/// A copy of a model with another `quantization_config`.
fn configured(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = changed(name, |_| {});
    let path = copy.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config["quantization_config"]);
    fs::write(&path, config.to_string()).unwrap();
    copy
}

#[test]
fn expressions_are_anchored_at_the_start_and_bounded() {
    let ignoring = |list: &[&str]| {
        let copy = configured("ct_int8", |config| config["ignore"] = list.into());
        load(copy.path()).map(drop)
    };
    // The head is plain in the file, so it need not be ignored.
    assert_eq!(ignoring(&[]), Ok(()));
    // An ignored matrix must be plain; an expression need not reach the end of a name.
    for ignored in ["re:model.*up", "re:.*up_proj", "model.layers.0.mlp.up_proj"] {
        let error = ignoring(&[ignored]).unwrap_err();
        assert!(error.contains("up_proj") && error.contains("I8"), "{ignored}: {error}");
    }
    for other in ["re:layers", "re:up_proj", "up_proj", "model.layers.0.mlp.up", "Conv2d"] {
        assert_eq!(ignoring(&[other]), Ok(()), "{other}");
    }
    for bad in ["re:(", "re:(?:(?:a{1000}){1000}){1000}", r"re:(.*)*(.*)*(.*)*\1\2\3x"] {
        let error = ignoring(&[bad]).unwrap_err();
        assert!(error.contains("regular expression"), "{bad}: {error}");
    }
    let error = ignoring(&vec!["re:a"; 300]).unwrap_err();
    assert!(error.contains("more than 256"), "{error}");
}

/// A wrong version, group or width of codes never gives other values silently.
#[test]
fn settings_that_do_not_fit_the_tensors_are_refused() {
    let with = |name: &str, key: &str, value: serde_json::Value| {
        let copy = configured(name, |config| config[key] = value);
        load(copy.path()).unwrap_err()
    };
    for (name, key, value) in [
        ("awq", "group_size", 64.into()),
        ("awq", "group_size", (-1).into()),
        ("gptq_v1", "bits", 8.into()),
        ("gptq_v1", "group_size", 16.into()),
        ("gptq_v1", "dynamic", serde_json::Value::Null),
        ("fp8_block", "weight_block_size", vec![64, 128].into()),
        ("fp8_block", "weight_block_size", serde_json::Value::Null),
        ("modelopt_nvfp4", "quant_algo", "FP8".into()),
    ] {
        let error = with(name, key, value);
        assert!(error.contains("tensor `model.layers.0."), "{name} {key}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..Default::default() })]

    #[test]
    fn changed_tensors_never_panic(
        name in select(all()),
        tensor in any::<Index>(),
        shape in prop::option::of(prop::collection::vec(0_usize..200, 0..4)),
        dtype in prop::option::of(select(vec![
            FileDtype::U8, FileDtype::I8, FileDtype::F8_E4M3, FileDtype::F8_E8M0,
            FileDtype::F8_E5M2, FileDtype::BF16, FileDtype::F16, FileDtype::I32, FileDtype::F32,
            FileDtype::I64,
        ])),
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..8),
    ) {
        let copy = changed(&name, |tensors| {
            let names: Vec<String> = tensors.keys().cloned().collect();
            let (old, sizes, data) = tensors.get_mut(tensor.get(&names)).unwrap();
            *sizes = shape.unwrap_or_else(|| sizes.clone());
            *old = dtype.unwrap_or(*old);
            let bits: usize = sizes.iter().product::<usize>() * old.bitsize();
            data.resize(bits / 8, 0x11);
            let edits = if data.is_empty() { &[] } else { &bytes[..] };
            for (at, byte) in edits {
                let at = at.index(data.len());
                data[at] = *byte;
            }
        });
        let _ = load(copy.path());
    }

    #[test]
    fn changed_headers_and_configs_never_panic(
        name in select(all()),
        config in any::<bool>(),
        edits in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<Index>()),
    ) {
        let copy = changed(&name, |_| {});
        let path = copy.path().join(if config { "config.json" } else { "model.safetensors" });
        let mut bytes = fs::read(&path).unwrap();
        let header = if config { bytes.len() } else { bytes.len().min(4000) };
        for (at, byte) in edits {
            // Digits and signs keep the JSON valid more often than other bytes.
            bytes[at.index(header)] = b"0123456789-.\"[]{},:ntf"[usize::from(byte) % 22];
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        fs::write(&path, bytes).unwrap();
        let _ = load(copy.path());
    }
}
