//! Every kernel compiles for every architecture weft is made for, without a GPU; those that a token
//! runs through keep all they hold in registers.
//!
//! Needs NVRTC on the library path, see `tools/nvrtc.sh`. Without it the tests are skipped;
//! with `WEFT_REQUIRE_NVRTC=1` they fail.

use weft_core::config::Config;
use weft_core::shapes;
use weft_core::weights::{Form, Forms, LayerTensor, Tensor, Weights, WeightsError};
use weft_cuda::{Chip, CudaError, DECODE_KERNELS, Program, WHOLE_PLANS, compile, program};
use weft_testing::{Missing, skip};

/// What the architecture's GPUs have for a block: how matrices are cut depends on it.
fn chip(arch: &str) -> Chip {
    let (n_sms, shared_kib) = match arch {
        "sm_80" => (108, 163),
        "sm_86" => (82, 99),
        "sm_89" => (128, 99),
        "sm_90a" => (132, 227),
        "sm_100a" => (148, 227),
        _ => (170, 99),
    };
    Chip { n_sms, shared_bytes: shared_kib << 10, has_warpgroups: arch == "sm_90a" }
}

/// The compiler's report for a shape; none without a compiler.
fn report(config: &Config, arch: &str, with_persistent: bool) -> Option<String> {
    compiled(&program(config, &Forms::default(), chip(arch), with_persistent).unwrap(), arch)
}

fn plain_program(with_persistent: bool) -> Program {
    let config = shapes::config("qwen3-0.6b").unwrap();
    program(&config, &Forms::default(), chip("sm_90a"), with_persistent).unwrap()
}

fn compiled(program: &Program, arch: &str) -> Option<String> {
    match compile(program, arch) {
        Ok(compiled) => {
            assert!(!compiled.cubin.is_empty());
            Some(compiled.report)
        }
        Err(CudaError::Unavailable(reason)) => {
            skip(Missing::Nvrtc, &reason);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Kernel and bytes that it spills, as ptxas reports them.
fn spills(report: &str) -> Vec<(String, usize)> {
    let mut kernel = String::new();
    let mut found = Vec::new();
    for line in report.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            kernel = rest.split('\'').next().unwrap_or_default().to_owned();
        }
        if let Some(before) = line.split(" bytes spill stores").next().filter(|b| *b != line) {
            let bytes = before.rsplit([' ', ',']).next().and_then(|n| n.parse().ok());
            found.push((kernel.clone(), bytes.expect("ptxas says how many bytes")));
        }
    }
    found
}

/// A test for each architecture, so that all cores compile.
macro_rules! architectures {
    ($($test:ident: $arch:literal),*) => {
        $(#[test] fn $test() { every_kernel_compiles($arch); })*
    };
}
architectures!(
    sm_80: "sm_80", sm_86: "sm_86", sm_89: "sm_89", sm_90a: "sm_90a", sm_100a: "sm_100a",
    sm_120: "sm_120"
);

fn every_kernel_compiles(arch: &str) {
    let config = shapes::config("qwen3-0.6b").unwrap();
    // The persistent kernels need a block with much shared memory (`persistent/shared_memory.rs`).
    let with_persistent = chip(arch).shared_bytes > 128 << 10;
    let Some(report) = report(&config, arch, with_persistent) else { return };
    let spills = spills(&report);
    let bytes_of = |kernel: &str| {
        let found = spills.iter().find(|(name, _)| name == kernel);
        found.unwrap_or_else(|| panic!("{arch}: no report for {kernel}")).1
    };
    for kernel in DECODE_KERNELS {
        assert_eq!(bytes_of(kernel), 0, "{arch}: {kernel} spills");
    }
    // The persistent kernel is tuned for sm_90. Elsewhere it may spill some words more.
    let most = match arch {
        "sm_90a" => 32,
        "sm_80" => 120,
        _ => 40,
    };
    let whole = WHOLE_PLANS.iter().filter(|_| with_persistent);
    for kernel in whole.flat_map(|(name, _)| [name.to_string(), format!("{name}_drawn")]) {
        let bytes = bytes_of(&kernel);
        assert!(bytes <= most, "{arch}: {kernel} spills {bytes} bytes");
    }
}

#[test]
fn every_named_shape_compiles() {
    for name in shapes::NAMES {
        let config = shapes::config(name).unwrap();
        let Some(report) = report(&config, "sm_90a", false) else { return };
        let spilled: Vec<_> = { spills(&report).into_iter() }
            .filter(|(kernel, bytes)| *bytes > 0 && DECODE_KERNELS.contains(&kernel.as_str()))
            .collect();
        // Wider inputs than this do not fit into the registers of one warp in eight.
        let holds = config.hidden <= 4096;
        assert!(spilled.is_empty() || !holds, "{name}: {spilled:?}");
    }
}

/// Says which form each tensor has; has no values.
struct Mixed;

impl Weights for Mixed {
    fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
        Ok(())
    }

    /// Every kind of code, and q, k and v, gate and up of different forms.
    fn form(&self, tensor: Tensor) -> Form {
        let all = weft_testing::forms::all();
        let Tensor::Layer(layer, kind) = tensor else { return Form::Plain };
        let place = usize::from(layer) * 4;
        let of = |i: usize| Form::Coded(all[(place + i) % all.len()]);
        match kind {
            LayerTensor::Q => of(0),
            LayerTensor::K | LayerTensor::Gate => of(1),
            LayerTensor::V | LayerTensor::O => of(2),
            LayerTensor::Up | LayerTensor::Down => of(3),
            _ => Form::Plain,
        }
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

#[test]
fn kernels_of_every_form_compile() {
    let mut config = shapes::config("qwen3-0.6b").unwrap();
    config.layers = 5;
    let forms = Forms::of(&Mixed, &config);
    // Gate and up differ in form, so that single warps multiply both.
    let by_arch = [
        ("sm_80", ["norm_qkv", "norm_qkv_block_4", "down_add_sixteen_3"]),
        ("sm_90a", ["norm_gate_up_block_1", "norm_qkv_tiled_128_4", "down_add_tiled_64_3"]),
    ];
    for (arch, kernels) in by_arch {
        let program = program(&config, &forms, chip(arch), false).unwrap();
        let Some(report) = compiled(&program, arch) else { return };
        let names: Vec<String> = spills(&report).into_iter().map(|(name, _)| name).collect();
        for kernel in kernels {
            assert!(names.iter().any(|name| name == kernel), "{arch}: no {kernel}");
        }
    }
}

/// Editors open one file at a time, so each includes what it uses. Kernels are read as functions
/// that nobody calls: that takes no time.
#[test]
fn every_file_includes_what_it_uses() {
    const NO_KERNELS: &str = "#undef __global__\n#define __global__ __device__ inline\n\
                              #undef __launch_bounds__\n#define __launch_bounds__(...)\n\
                              #undef __cluster_dims__\n#define __cluster_dims__(...)\n\
                              #undef __grid_constant__\n#define __grid_constant__\n";
    const ONE_KERNEL: &str = "extern \"C\" __attribute__((global)) void nothing() {}\n";
    let all = plain_program(true);
    for (name, _) in &all.files {
        let source = format!("{NO_KERNELS}#include \"{name}\"\n{ONE_KERNEL}");
        let Some(_) = compiled(&Program { source, ..all.clone() }, "sm_90a") else { return };
    }
}

/// A struct whose fields lie elsewhere than the host thinks is no program.
#[test]
fn fields_in_another_order_do_not_compile() {
    let all = plain_program(false);
    let breaks = [
        (
            "kernels/section.cuh",
            "u32 n_rows, n_queries, n_stores;",
            "u32 n_queries, n_rows, n_stores;",
        ),
        ("persistent/launch.cuh", "u32 n_ops, n_steps;", "u32 n_steps, n_ops;"),
        ("kernels/sampling.cuh", "u32 top_k;", "u64 top_k;"),
    ];
    for (name, ours, other) in breaks {
        let mut broken = all.clone();
        let (_, text) = broken.files.iter_mut().find(|(file, _)| file == name).unwrap();
        assert_eq!(text.matches(ours).count(), 1, "{name}: {ours}");
        *text = text.replace(ours, other);
        match compile(&broken, "sm_90a") {
            Err(CudaError::Unavailable(_)) => return,
            Err(CudaError::Compile { log, .. }) => {
                assert!(log.contains("static assertion failed"), "{log}");
            }
            other => panic!("{name}: {:?}", other.map(|compiled| compiled.report)),
        }
    }
}

#[test]
fn spills_are_read_from_the_report() {
    let report = "ptxas info    : Compiling entry function 'embed' for 'sm_90a'\n\
                  ptxas         .     8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n\
                  ptxas info    : Compiling entry function 'attend' for 'sm_90a'\n\
                  ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    assert_eq!(spills(report), [("embed".to_owned(), 12), ("attend".to_owned(), 0)]);
}
