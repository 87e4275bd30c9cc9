//! The kernels of experts compile without a GPU, for the GPUs that weft is made for, in every form,
//! and those that a token runs through keep all they hold in registers.
//!
//! Needs NVRTC on the library path, see `tools/nvrtc.sh`. Without it the tests are skipped; with
//! `WEFT_REQUIRE_NVRTC=1` they fail.

use weft_core::config::Config;
use weft_core::shapes;
use weft_core::weights::{Coded, Form, Forms, LayerTensor, Tensor, Weights, WeightsError};
use weft_cuda::{Chip, CudaError, compile, modules};
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

/// Compiles the kernels of experts; returns the names of all of them, or none without a compiler.
fn kernels(config: &Config, forms: &Forms, arch: &str, chip: Chip) -> Option<Vec<String>> {
    let is_own = |name: &str| ["expert", "route"].iter().any(|part| name.contains(part));
    let mut found = Vec::new();
    for module in modules(config, forms, chip, false).unwrap() {
        if !is_own(&module.name) {
            continue;
        }
        let report = match compile(&module.program, arch) {
            Ok(compiled) => compiled.report,
            Err(CudaError::Unavailable(reason)) => {
                skip(Missing::Nvrtc, &reason);
                return None;
            }
            Err(error) => panic!("{}: {error}", module.name),
        };
        let mut kernel = String::new();
        for line in report.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                kernel = rest.split('\'').next().unwrap_or_default().to_owned();
                found.push(kernel.clone());
            }
            let for_tokens = !kernel.contains("_tiled") && !kernel.contains("_block");
            let spills = line.contains("spill") && !line.contains("0 bytes spill stores, 0 bytes");
            assert!(!(for_tokens && spills), "{arch}: {kernel}: {line}");
        }
    }
    Some(found)
}

const AMPERE: Chip = Chip { n_sms: 82, shared_bytes: 99 << 10, has_warpgroups: false };

#[test]
fn experts_of_the_named_shape_compile() {
    let config = shapes::config("qwen3-30b-a3b").unwrap();
    for form in [Form::Plain, Form::Coded(Coded::int(8)), Form::Coded(Coded::int(4))] {
        let forms = forms(&config, vec![form]);
        for (arch, chip) in [("sm_90a", Chip::HOPPER), ("sm_80", AMPERE)] {
            let Some(found) = kernels(&config, &forms, arch, chip) else { return };
            for name in ["norm_route", "choose_experts", "expert_gate_up", "expert_down_add"] {
                assert!(found.iter().any(|kernel| kernel == name), "{arch}: no {name}");
            }
            let block = if chip.has_warpgroups { "tiled_128" } else { "block" };
            assert!(found.contains(&format!("expert_down_add_{block}")), "{found:?}");
        }
    }
}

#[test]
fn experts_of_every_form_compile() {
    let mut config = shapes::config("qwen3-30b-a3b").unwrap();
    let all: Vec<Form> = weft_testing::forms::all().into_iter().map(Form::Coded).collect();
    config.layers = all.len();
    let forms = forms(&config, all);
    for (arch, chip) in [("sm_90a", Chip::HOPPER), ("sm_80", AMPERE)] {
        let Some(found) = kernels(&config, &forms, arch, chip) else { return };
        // Every other layer's gate and up differ in form, so that single warps multiply them.
        for name in ["expert_gate_up_block_1", "expert_down_add_5"] {
            assert!(found.iter().any(|kernel| kernel == name), "{arch}: no {name}: {found:?}");
        }
    }
}
