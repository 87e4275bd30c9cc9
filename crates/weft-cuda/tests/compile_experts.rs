//! The kernels of experts compile without a GPU, for two GPUs and in every form; those that a token
//! runs through keep all they hold in registers, in the forms that models have most.
//!
//! Needs NVRTC on the library path, see `tools/nvrtc.sh`. Without it the tests are skipped; with
//! `WEFT_REQUIRE_NVRTC=1` they fail. Kernels that passed as they are now are not compiled again, as
//! those of `compile.rs`.

mod compiled;

use std::path::Path;

use compiled::{Record, every, hash_of};
use weft_core::config::Config;
use weft_core::shapes;
use weft_core::weights::{Coded, Form, Forms, LayerTensor, Tensor, Weights, WeightsError};
use weft_cuda::{Chip, ModuleSource, Stage, compile, modules};
use weft_testing::{Missing, skip};

/// Says which form each tensor has; has no values.
struct Named(Box<dyn Fn(Tensor) -> Form + Sync>);

impl Weights for Named {
    fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
        Ok(())
    }

    fn form(&self, tensor: Tensor) -> Form {
        (self.0)(tensor)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The experts' matrices of layer i have the i-th form of a list, or the next one.
fn forms(config: &Config, all: Vec<Form>) -> Forms {
    let form = move |tensor: Tensor| {
        let of = |layer: u16, i: usize| all[(usize::from(layer) + i) % all.len()];
        match tensor {
            Tensor::Layer(layer, LayerTensor::ExpertGate) => of(layer, 0),
            Tensor::Layer(layer, LayerTensor::ExpertUp) => of(layer, usize::from(layer % 2)),
            Tensor::Layer(layer, LayerTensor::ExpertDown) => of(layer, 0),
            _ => Form::Plain,
        }
    };
    Forms::of(&Named(Box::new(form)), config)
}

/// Kernels and the bytes that they spill, as ptxas reports them.
fn spills(report: &str, to: &mut Vec<(String, usize)>) {
    for line in report.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            to.push((rest.split('\'').next().unwrap_or_default().to_owned(), 0));
        }
        let Some((before, _)) = line.split_once(" bytes spill stores") else { continue };
        let bytes: Option<usize> = before.rsplit([' ', ',']).next().and_then(|n| n.parse().ok());
        // Functions that a kernel calls are reported after it.
        let of_kernel = &mut to.last_mut().unwrap().1;
        *of_kernel = bytes.expect("ptxas says how many bytes").max(*of_kernel);
    }
}

/// Has a test judge the kernels of experts, unless they passed before as they are now.
fn check(
    name: &str,
    config: &Config,
    forms: &Forms,
    (arch, chip): (&str, Chip),
    judge: impl FnOnce(&[(String, usize)]),
) {
    let is_own = |name: &str| ["expert", "route"].iter().any(|part| name.contains(part));
    let mut own = modules(config, forms, chip, false).unwrap();
    own.retain(|module| is_own(&module.name));
    check_modules(name, &own, arch, judge);
}

/// The same for some modules.
fn check_modules(
    name: &str,
    own: &[ModuleSource],
    arch: &str,
    judge: impl FnOnce(&[(String, usize)]),
) {
    let hash = match hash_of(own, arch) {
        Ok(hash) => hash,
        Err(reason) => return skip(Missing::Nvrtc, &reason),
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled/passed.txt");
    let (record, line) = (Record(&file), format!("{arch} experts, {name}"));
    if !every() && record.has(&line, &hash) {
        return skip(Missing::Change, &"these kernels passed as they are");
    }
    let mut found = Vec::new();
    for module in own {
        let compiled = compile(&module.program, arch);
        let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", module.name));
        spills(&compiled.report, &mut found);
    }
    judge(&found);
    if !every() && std::env::var_os("WEFT_RECORD_KERNELS").is_some() {
        record.add(&line, &hash);
    }
}

const AMPERE: Chip = Chip { n_sms: 82, shared_bytes: 99 << 10, has_warpgroups: false };

const GPUS: [(&str, Chip); 2] = [("sm_90a", Chip::HOPPER), ("sm_80", AMPERE)];

#[test]
fn experts_of_the_named_shape_compile() {
    let config = shapes::config("qwen3-30b-a3b").unwrap();
    let int = |bits| Form::Coded(Coded::int(bits));
    for (name, form) in [("bf16", Form::Plain), ("int8", int(8)), ("int4", int(4))] {
        let forms = forms(&config, vec![form]);
        for gpu in GPUS {
            check(name, &config, &forms, gpu, |found| {
                for name in ["norm_route", "choose_experts", "expert_gate_up", "expert_down_add"] {
                    assert!(found.contains(&(name.to_owned(), 0)), "{gpu:?}: {name} of {found:?}");
                }
                let block = if gpu.1.has_warpgroups { "tiled_128" } else { "block" };
                let name = format!("expert_down_add_{block}");
                assert!(found.iter().any(|(kernel, _)| *kernel == name), "{found:?}");
            });
        }
    }
}

#[test]
fn experts_of_every_form_compile() {
    let mut config = shapes::config("qwen3-30b-a3b").unwrap();
    let all: Vec<Form> = weft_testing::forms::all().into_iter().map(Form::Coded).collect();
    config.layers = all.len();
    let forms = forms(&config, all);
    for gpu in GPUS {
        check("every form", &config, &forms, gpu, |found| {
            // Every other layer's gate and up differ in form, so that single warps multiply them.
            for name in ["expert_gate_up_block_1", "expert_down_add_5"] {
                assert!(found.iter().any(|(kernel, _)| kernel == name), "{gpu:?}: no {name}");
            }
        });
    }
}

/// What the persistent kernel for four lanes may spill: around attention, where no loop is.
const SPILLS_OF_FOUR: usize = 64;

/// Persistent kernels of the named shape, all of whose matrices but routers have one form: those of
/// one lane, and the one of four in the form that is decoded most.
#[test]
fn persistent_kernels_of_experts_keep_what_they_hold() {
    let config = shapes::config("qwen3-30b-a3b").unwrap();
    let int = |bits| Form::Coded(Coded::int(bits));
    let all: [(&str, Form, &[&str]); 3] = [
        ("bf16", Form::Plain, &["decode_one"]),
        ("int8", int(8), &["decode_one"]),
        ("int4", int(4), &["decode_one", "decode_four"]),
    ];
    for (name, form, kernels) in all {
        let shape = config.clone();
        let is_coded = move |tensor: Tensor| {
            tensor.shape(&shape).len() > 1
                && !matches!(tensor, Tensor::Layer(_, LayerTensor::Router))
        };
        let form = move |tensor: Tensor| if is_coded(tensor) { form } else { Form::Plain };
        let forms = Forms::of(&Named(Box::new(form)), &config);
        let mut own = modules(&config, &forms, Chip::HOPPER, true).unwrap();
        own.retain(|module| {
            module.stage == Stage::Persistent && kernels.contains(&module.name.as_str())
        });
        check_modules(&format!("{name}, persistent"), &own, "sm_90a", |found| {
            for kernel in kernels {
                let most = if *kernel == "decode_four" { SPILLS_OF_FOUR } else { 0 };
                let is_it = |(of, bytes): &(String, usize)| of == kernel && *bytes <= most;
                assert!(found.iter().any(is_it), "{name}: {found:?}");
            }
        });
    }
}
