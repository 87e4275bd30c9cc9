//! Every kernel compiles for every architecture weft is made for, without a GPU; those that a token
//! runs through keep all they hold in registers.
//!
//! Needs NVRTC on the library path, see `tools/nvrtc.sh`. Without it the tests are skipped;
//! with `WEFT_REQUIRE_NVRTC=1` they fail. A persistent kernel takes the compiler ten seconds, so
//! two of the eight stand for all on architectures that they are not tuned for; `make kernels` sets
//! `WEFT_EVERY_KERNEL=1`, which compiles all eight everywhere.

use weft_core::config::Config;
use weft_core::shapes;
use weft_core::weights::{Coded, Form, Forms, LayerTensor, Tensor, Weights, WeightsError};
use weft_cuda::{
    Chip, CudaError, DECODE_KERNELS, Program, Stage, WHOLE_PLANS, compile, modules, sources,
};
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

/// The compiler's reports for the modules of a shape, persistent kernels only those of `plans`, side
/// by side on two cores; none without a compiler.
fn report(config: &Config, forms: &Forms, arch: &str, plans: &[String]) -> Option<String> {
    let mut all = modules(config, forms, chip(arch), !plans.is_empty()).unwrap();
    all.retain(|module| module.stage != Stage::Persistent || plans.contains(&module.name));
    let (first, second) = all.split_at(all.len() / 2);
    let compiled_all = |modules: &[weft_cuda::ModuleSource]| -> Option<String> {
        modules.iter().map(|module| compiled(&module.program, arch)).collect()
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| compiled_all(second));
        let first = compiled_all(first)?;
        Some(first + &second.join().unwrap()?)
    })
}

/// All files, and a source that includes some of them.
fn plain_program(source: &str) -> Program {
    let config = shapes::config("qwen3-0.6b").unwrap();
    let files = sources(&config, &Forms::default(), chip("sm_90a")).unwrap();
    Program { source: source.to_owned(), files }
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

/// The persistent kernels that are compiled for an architecture: the one that takes any step and
/// the one that draws a single token have every part of the others.
fn whole_plans(arch: &str) -> Vec<String> {
    let every = arch == "sm_90a" || std::env::var_os("WEFT_EVERY_KERNEL").is_some();
    let both = |(name, _): &(&str, _)| [name.to_string(), format!("{name}_drawn")];
    let all = WHOLE_PLANS.iter().flat_map(both);
    all.filter(|name| every || ["decode", "decode_one_drawn"].contains(&name.as_str())).collect()
}

fn every_kernel_compiles(arch: &str) {
    let config = shapes::config("qwen3-0.6b").unwrap();
    // The persistent kernels need a block with much shared memory (`persistent/shared_memory.rs`).
    let with_persistent = chip(arch).shared_bytes > 128 << 10;
    let plans = if with_persistent { whole_plans(arch) } else { Vec::new() };
    let Some(report) = report(&config, &Forms::default(), arch, &plans) else { return };
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
        "sm_90a" => PERSISTENT_SPILLS,
        "sm_80" => 120,
        _ => 40,
    };
    for kernel in plans {
        let bytes = bytes_of(&kernel);
        assert!(bytes <= most, "{arch}: {kernel} spills {bytes} bytes");
    }
}

/// What a persistent kernel may spill on the architecture that it is tuned for.
const PERSISTENT_SPILLS: usize = 32;

/// The head may spill two words: it also ranks what log-probabilities report, once per tile.
const HEAD_SPILLS: usize = 8;

#[test]
fn every_named_shape_compiles() {
    // The first is compiled for every architecture, above.
    for name in &shapes::NAMES[1..] {
        let config = shapes::config(name).unwrap();
        let Some(report) = report(&config, &Forms::default(), "sm_90a", &[]) else { return };
        let spilled: Vec<_> = { spills(&report).into_iter() }
            .filter(|(kernel, _)| DECODE_KERNELS.contains(&kernel.as_str()))
            .filter(|(kernel, bytes)| *bytes > if kernel == "norm_head" { HEAD_SPILLS } else { 0 })
            .collect();
        // Wider inputs than this do not fit into the registers of one warp in eight.
        let holds = config.hidden <= 4096;
        assert!(spilled.is_empty() || !holds, "{name}: {spilled:?}");
    }
}

/// The kernels of int4 models that one lane runs through: 8B has an even number of tiles a block,
/// 32B an odd one.
#[test]
fn coded_persistent_kernels_keep_what_they_hold() {
    struct Int4;
    impl Weights for Int4 {
        fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
            Ok(())
        }
        fn form(&self, tensor: Tensor) -> Form {
            let config = shapes::config("qwen3-8b").unwrap();
            if tensor.shape(&config).len() == 2 { Form::Coded(Coded::int(4)) } else { Form::Plain }
        }
        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
    }
    for name in ["qwen3-8b", "qwen3-32b"] {
        let config = shapes::config(name).unwrap();
        let forms = Forms::of(&Int4, &config);
        let all = modules(&config, &forms, chip("sm_90a"), true).unwrap();
        let one = all.iter().find(|module| module.name == "decode_one").unwrap();
        let Some(report) = compiled(&one.program, "sm_90a") else { return };
        let bytes: Vec<usize> = spills(&report).into_iter().map(|(_, bytes)| bytes).collect();
        let most = bytes.iter().max().expect("a report for decode_one");
        assert!(*most <= PERSISTENT_SPILLS, "{name}: decode_one spills {bytes:?} bytes");
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
        let Some(report) = report(&config, &forms, arch, &[]) else { return };
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
    let all = plain_program("");
    for (name, _) in &all.files {
        let source = format!("{NO_KERNELS}#include \"{name}\"\n{ONE_KERNEL}");
        let Some(_) = compiled(&Program { source, ..all.clone() }, "sm_90a") else { return };
    }
}

/// A struct whose fields lie elsewhere than the host thinks is no program.
#[test]
fn fields_in_another_order_do_not_compile() {
    let config = shapes::config("qwen3-0.6b").unwrap();
    let all = modules(&config, &Forms::default(), chip("sm_90a"), false).unwrap();
    // One module of every model checks the layouts.
    let checks = |module: &&weft_cuda::ModuleSource| {
        module.program.files.iter().any(|(name, _)| name == "generated/layouts.cuh")
    };
    let [module] = all.iter().filter(checks).collect::<Vec<_>>()[..] else { panic!("one") };
    assert_eq!(module.stage, Stage::Decode);
    let all = &module.program;
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

/// Compilers run on threads that nobody waits for. A process that ends meanwhile must not crash: the
/// library would take down objects that its compilers still use.
#[test]
fn a_process_may_end_while_it_compiles() {
    const AFTER_MS: &str = "WEFT_TEST_ENDS_AFTER_MS";
    const NAME: &str = "a_process_may_end_while_it_compiles";
    let config = shapes::config("qwen3-0.6b").unwrap();
    let all = modules(&config, &Forms::default(), chip("sm_90a"), true).unwrap();
    if let Some(ms) = std::env::var(AFTER_MS).ok().and_then(|ms| ms.parse().ok()) {
        let whole = all.into_iter().filter(|module| module.stage == Stage::Persistent).take(3);
        for module in whole {
            std::thread::spawn(move || compile(&module.program, "sm_90a"));
        }
        std::thread::sleep(std::time::Duration::from_millis(ms));
        std::process::exit(0);
    }
    let Some(_) = compiled(&all[0].program, "sm_90a") else { return };
    for ms in [50, 400, 1500, 4000] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = child.args(["--exact", NAME, "--nocapture"]).env(AFTER_MS, ms.to_string());
        let ran = ran.stdout(std::process::Stdio::null()).status().unwrap();
        assert!(ran.success(), "after {ms} ms: {ran}");
    }
}
