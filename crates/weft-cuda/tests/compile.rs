//! Every kernel compiles for every architecture weft is made for, without a GPU; those that a token
//! runs through keep all they hold in registers.
//!
//! Needs NVRTC on the library path, see `tools/nvrtc.sh`. Without it the tests are skipped;
//! with `WEFT_REQUIRE_NVRTC=1` they fail. A persistent kernel takes the compiler ten seconds, so
//! two of the eight stand for all on architectures that they are not tuned for, and a set of kernels
//! that passed as it is now (`compiled/passed.txt`) is not compiled again but counted as skipped.
//! `make kernels` compiles what has changed and writes the record. `WEFT_EVERY_KERNEL=1` compiles
//! all eight everywhere, whatever the record says.

mod compiled;

use std::path::Path;

use weft_core::config::Config;
use weft_core::shapes;
use weft_core::weights::{Coded, Form, Forms, LayerTensor, Tensor, Weights, WeightsError};
use weft_cuda::{
    Chip, CudaError, DECODE_KERNELS, ModuleSource, Program, Stage, WHOLE_PLANS, compile,
    cubin_name, modules, sources,
};
use weft_testing::{Missing, skip};

use compiled::{Record, every, hash_of};

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

/// The kernels of one shape for one architecture: persistent kernels only those of `plans`.
struct Set<'a> {
    name: &'a str,
    config: &'a Config,
    forms: &'a Forms,
    arch: &'a str,
    plans: &'a [String],
}

impl Set<'_> {
    /// Has the test judge what the compiler reports, unless this set passed before as it is now.
    /// Whether it was compiled; none without a compiler.
    fn check(&self, judge: impl FnOnce(&[(String, usize)])) -> Option<bool> {
        self.check_modules(&self.modules(), judge)
    }

    /// The same for some of the set's modules.
    fn check_modules(
        &self,
        modules: &[ModuleSource],
        judge: impl FnOnce(&[(String, usize)]),
    ) -> Option<bool> {
        let hash = hash_of(modules, self.arch).ok()?;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled/passed.txt");
        let (record, line) = (Record(&file), format!("{} {}", self.arch, self.name));
        if !every() && record.has(&line, &hash) {
            return Some(false);
        }
        judge(&spills(&self.report(modules)));
        if !every() && std::env::var_os("WEFT_RECORD_KERNELS").is_some() {
            record.add(&line, &hash);
        }
        Some(true)
    }

    fn modules(&self) -> Vec<ModuleSource> {
        let (chip, with_plans) = (chip(self.arch), !self.plans.is_empty());
        let mut all = modules(self.config, self.forms, chip, with_plans).unwrap();
        all.retain(|module| module.stage != Stage::Persistent || self.plans.contains(&module.name));
        all
    }

    /// The compiler's reports, side by side on two cores.
    fn report(&self, modules: &[ModuleSource]) -> String {
        let (first, second) = modules.split_at(modules.len() / 2);
        let compiled_all = |modules: &[ModuleSource]| -> String {
            let compiled = modules.iter().map(|module| compile(&module.program, self.arch));
            compiled.map(|compiled| compiled.unwrap().report).collect()
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| compiled_all(second));
            compiled_all(first) + &second.join().unwrap()
        })
    }
}

/// Counts a test as skipped if there is no compiler, or if all sets of its kernels passed before as
/// they are now.
fn count(compiled: &[Option<bool>]) {
    if compiled.contains(&None) {
        skip(Missing::Nvrtc, &"libnvrtc was not found");
    } else if !compiled.contains(&Some(true)) {
        skip(Missing::Change, &"these kernels passed as they are");
    }
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

/// The persistent kernels that are compiled for an architecture: the one for most tokens and the one
/// that draws a single token have every part of the others.
fn whole_plans(arch: &str) -> Vec<String> {
    let every = arch == "sm_90a" || every();
    let both = |(name, _): &(&str, _)| [name.to_string(), format!("{name}_drawn")];
    let all = WHOLE_PLANS.iter().flat_map(both);
    all.filter(|name| every || ["decode_eight", "decode_one_drawn"].contains(&name.as_str()))
        .collect()
}

fn every_kernel_compiles(arch: &str) {
    let config = shapes::config("qwen3-0.6b").unwrap();
    // The persistent kernels need a block with much shared memory (`persistent/shared_memory.rs`).
    let with_persistent = chip(arch).shared_bytes > 128 << 10;
    let plans = if with_persistent { whole_plans(arch) } else { Vec::new() };
    let forms = Forms::default();
    let set = Set { name: "qwen3-0.6b", config: &config, forms: &forms, arch, plans: &plans };
    count(&[set.check(|spills| {
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
        for kernel in &plans {
            let bytes = bytes_of(kernel);
            // Eight tokens of one section are two queries of a lane. On sm_80 that costs half a
            // kilobyte; `auto` takes the kernel only where it is faster than the graph.
            let most = match kernel.starts_with("decode_eight") {
                true if arch == "sm_80" => 640,
                true if arch != "sm_90a" => 128,
                true => 3 * most,
                false => most,
            };
            assert!(bytes <= most, "{arch}: {kernel} spills {bytes} bytes");
        }
    })]);
}

/// What a persistent kernel may spill on the architecture that it is tuned for.
const PERSISTENT_SPILLS: usize = 32;

/// The head may spill two words: it also ranks what log-probabilities report, once per tile.
const HEAD_SPILLS: usize = 8;

#[test]
fn every_named_shape_compiles() {
    // The first is compiled for every architecture, above.
    let compiled: Vec<_> = shapes::NAMES[1..].iter().map(|name| compiles(name)).collect();
    count(&compiled);
}

/// Checks a named shape; whether it was compiled.
fn compiles(name: &str) -> Option<bool> {
    let config = shapes::config(name).unwrap();
    let forms = Forms::default();
    Set { name, config: &config, forms: &forms, arch: "sm_90a", plans: &[] }.check(|spills| {
        let spilled: Vec<_> = { spills.iter() }
            .filter(|(kernel, _)| DECODE_KERNELS.contains(&kernel.as_str()))
            .filter(|(kernel, bytes)| *bytes > if kernel == "norm_head" { HEAD_SPILLS } else { 0 })
            .collect();
        // Wider inputs than this do not fit into the registers of one warp in eight.
        let holds = config.hidden <= 4096;
        assert!(spilled.is_empty() || !holds, "{name}: {spilled:?}");
    })
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
    let plans = ["decode_one".to_owned()];
    let compiled = ["qwen3-8b", "qwen3-32b"].map(|shape| {
        let config = shapes::config(shape).unwrap();
        let forms = Forms::of(&Int4, &config);
        let name = format!("{shape}, int4, one lane");
        let set =
            Set { name: &name, config: &config, forms: &forms, arch: "sm_90a", plans: &plans };
        let modules = set.modules().into_iter().filter(|module| module.stage == Stage::Persistent);
        set.check_modules(&modules.collect::<Vec<_>>(), |spills| {
            let most = spills.iter().map(|(_, bytes)| *bytes).max().expect("a report");
            assert!(most <= PERSISTENT_SPILLS, "{name}: decode_one spills {most} bytes");
        })
    });
    count(&compiled);
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
    let compiled = by_arch.map(|(arch, kernels)| {
        let set = Set { name: "every-form", config: &config, forms: &forms, arch, plans: &[] };
        set.check(|spills| {
            for kernel in kernels {
                assert!(spills.iter().any(|(name, _)| name == kernel), "{arch}: no {kernel}");
            }
        })
    });
    count(&compiled);
}

/// A change of a source, of the compiler or of an architecture is no longer what passed.
#[test]
fn only_what_passed_as_it_is_now_is_in_the_record() {
    let config = shapes::config("qwen3-0.6b").unwrap();
    let mut all = modules(&config, &Forms::default(), chip("sm_90a"), false).unwrap();
    let hash = match hash_of(&all, "sm_90a") {
        Ok(hash) => hash,
        Err(error) => return skip(Missing::Nvrtc, &error),
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passed.txt");
    let record = Record(&file);
    assert!(!record.has("sm_90a a", &hash), "there is no file");
    record.add("sm_90a b", "2");
    record.add("sm_90a a", "1");
    record.add("sm_90a a", &hash);
    assert!(record.has("sm_90a a", &hash) && record.has("sm_90a b", "2"));
    assert!(!record.has("sm_90a a", "1") && !record.has("sm_90a b", &hash));
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
    assert_ne!(hash_of(&all, "sm_80").unwrap(), hash);
    assert_ne!(hash_of(&all[1..], "sm_90a").unwrap(), hash);
    all.last_mut().unwrap().program.files[0].1.push(' ');
    assert_ne!(hash_of(&all, "sm_90a").unwrap(), hash);
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
    let checks = |module: &&ModuleSource| {
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
        // As a device does: the library is loaded before anything is compiled beside.
        cubin_name(&all[0].program, "sm_90a").unwrap();
        let whole = all.into_iter().filter(|module| module.stage == Stage::Persistent).take(3);
        for module in whole {
            std::thread::spawn(move || compile(&module.program, "sm_90a"));
        }
        std::thread::sleep(std::time::Duration::from_millis(ms));
        std::process::exit(0);
    }
    let Some(_) = compiled(&all[0].program, "sm_90a") else { return };
    // The library makes most of its objects in the first tens of milliseconds.
    for ms in [5, 15, 25, 30, 35, 40, 50, 80, 400, 1500] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = child.args(["--exact", NAME, "--nocapture"]).env(AFTER_MS, ms.to_string());
        let ran = ran.stdout(std::process::Stdio::null()).status().unwrap();
        assert!(ran.success(), "after {ms} ms: {ran}");
    }
}
