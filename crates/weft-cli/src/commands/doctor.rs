//! `weft doctor`: checks this machine, and prints what to do about faults.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use weft::memory::available_memory;
use weft::self_test;
use weft_core::hub::{self, HubEnv};
use weft_core::shapes;
use weft_cuda::Launches;

use crate::answer::print;
use crate::args::{CacheArgs, DeviceArgs, DeviceKind, DoctorArgs, ModelArgs};
use crate::error::CliError;
use crate::load;
use crate::size;
use crate::terminal;
use crate::tiers::Budget;

/// The result of one check.
struct Check {
    name: &'static str,
    /// What was found, or what is wrong and how to fix it.
    found: Result<String, String>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut checks = vec![
        Check { name: "weft", found: Ok(env!("CARGO_PKG_VERSION").to_owned()) },
        Check { name: "cpu", found: Ok(cpu()) },
        Check { name: "memory", found: memory() },
        Check { name: "gpu", found: gpu() },
        Check { name: "hub cache", found: hub_cache() },
        Check { name: "context", found: Ok(context(&args.cache)) },
        Check { name: "kept rows", found: kept_rows(&args.cache) },
        Check { name: "self-test", found: self_test::cpu().map(|passed| passed.to_string()) },
    ];
    if let Some(model) = &args.warm {
        checks.push(Check { name: "warm", found: warm(model, args) });
    }
    print(&if args.json { as_json(&checks) } else { as_table(&checks) })?;
    let failed: Vec<_> =
        checks.iter().filter(|check| check.found.is_err()).map(|c| c.name).collect();
    if failed.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(CliError::Unhealthy(format!("failed: {}", failed.join(", "))))
    }
}

fn as_table(checks: &[Check]) -> String {
    let line = |check: &Check| match &check.found {
        Ok(found) => format!("ok    {:<10} {found}\n", check.name),
        Err(cure) => format!("FAIL  {:<10} {cure}\n", check.name),
    };
    checks.iter().map(line).collect()
}

fn as_json(checks: &[Check]) -> String {
    let fact = |check: &Check| {
        let (Ok(text) | Err(text)) = &check.found;
        json!({ "name": check.name, "ok": check.found.is_ok(), "found": text })
    };
    format!("{:#}\n", json!(checks.iter().map(fact).collect::<Vec<_>>()))
}

fn cpu() -> String {
    format!(
        "{}, {}{}",
        size::plural(weft_cpu::n_cores(), "thread"),
        std::env::consts::ARCH,
        vector_sets()
    )
}

/// A GPU is optional. If there is one, it must pass the self-test.
fn gpu() -> Result<String, String> {
    match weft_cuda::probe() {
        Err(error) => Ok(format!("not used: {error}")),
        Ok(facts) => {
            let (major, minor) = facts.capability;
            let [memory, free] =
                [facts.memory_bytes, facts.free_bytes].map(|bytes| size::bytes(bytes as u64));
            // Records are kept of both, and later starts find theirs.
            let passed = self_test::cuda(Launches::Graph, false)?;
            let sparse = self_test::cuda(Launches::Graph, true)?;
            Ok(format!(
                "{}, {memory}, {free} free, sm_{major}{minor}; {passed}; with experts {:.0} ms",
                facts.name,
                sparse.time_ms()
            ))
        }
    }
}

/// Loads a model onto the GPU, and waits until its kernels are compiled, tested and timed. All of
/// that is kept on disk, and later starts find it.
fn warm(name: &str, args: &DoctorArgs) -> Result<String, String> {
    let start = Instant::now();
    let model = ModelArgs {
        model: Some(name.to_owned()),
        device: DeviceArgs { kind: DeviceKind::Cuda, ..DeviceArgs::default() },
        quiet: args.json,
        ..ModelArgs::default()
    };
    let mut loaded = load::load(&model, &args.cache).map_err(|error| error.to_string())?;
    terminal::note(args.json, "compiling and timing the remaining kernels");
    loaded.engine.warm_up().map_err(|error| error.to_string())?;
    let device = loaded.engine.device();
    let details = device.details().unwrap_or_default();
    let took = start.elapsed().as_secs_f64();
    Ok(format!("{name} on {}: {details}; took {took:.1} s", device.describe()))
}

#[cfg(target_arch = "x86_64")]
fn vector_sets() -> String {
    let sets = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    sets.iter().filter(|(_, there)| *there).map(|(name, _)| format!(" {name}")).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_sets() -> String {
    String::new()
}

fn memory() -> Result<String, String> {
    /// The memory of the smallest real model with a short context.
    const SMALL_MODEL: u64 = 2_000_000_000;
    match available_memory() {
        None => Ok("unknown: this system does not report it".to_owned()),
        Some(free) if free < SMALL_MODEL => Err(format!(
            "{} free; a 0.6B model needs about {}: close other programs",
            size::bytes(free),
            size::bytes(SMALL_MODEL)
        )),
        Some(free) => Ok(format!("{} free", size::bytes(free))),
    }
}

/// What a context costs with the smallest of the usual models; `weft show` says it for any other.
fn context(args: &CacheArgs) -> String {
    const CONTEXT: usize = 8192;
    let config = shapes::config("qwen3-0.6b").expect("a named shape");
    let per_token = config.kv_bytes_per_token(config.dtype);
    format!("a 0.6B model: {}", Budget::new(args).context_cost(per_token, CONTEXT))
}

/// Checks that the folder of KV rows can be created, listed and written to.
fn kept_rows(args: &CacheArgs) -> Result<String, String> {
    let budget = Budget::new(args);
    let Some(store) = budget.open_store()? else { return Ok(budget.describe()) };
    let files = size::plural(store.entries().count(), "file");
    Ok(format!("{}; {files}, {}", budget.describe(), size::bytes(store.used_bytes())))
}

fn hub_cache() -> Result<String, String> {
    let env = HubEnv::from_env().map_err(|error| error.to_string())?;
    let cache = env.cache.display();
    let models = hub::list(&env)
        .map_err(|error| format!("{error}; check the folder's owner or set HF_HUB_CACHE"))?;
    let offline = if env.offline { ", offline" } else { "" };
    let models = size::plural(models.len(), "model");
    Ok(format!("{models} in {cache}, hub {}{offline}", env.endpoint))
}
