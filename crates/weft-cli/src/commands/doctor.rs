//! `weft doctor`: is this machine fit, and if not, what cures it.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use weft::config::Config;
use weft::device::{Device, Lane, Limits, MAX_LANES, Outputs, Span, Step};
use weft::hub::{self, HubEnv};
use weft::plan::plan;
use weft::reference;
use weft::weights::RandomWeights;
use weft_cpu::{CpuDevice, Options};

use crate::answer::print;
use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::load::available_memory;
use crate::size;

/// The outcome of one check.
struct Check {
    name: &'static str,
    /// What was found; or what is wrong and what cures it.
    found: Result<String, String>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let checks = [
        Check { name: "weft", found: Ok(env!("CARGO_PKG_VERSION").to_owned()) },
        Check { name: "cpu", found: Ok(cpu()) },
        Check { name: "memory", found: memory() },
        Check { name: "gpu", found: Ok("not used: this version has no CUDA device".to_owned()) },
        Check { name: "hub cache", found: hub_cache() },
        Check { name: "self-test", found: self_test() },
    ];
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
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{} threads, {}{}", threads, std::env::consts::ARCH, vector_sets())
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
    /// What the smallest real model takes with a short context.
    const SMALL_MODEL: u64 = 2_000_000_000;
    match available_memory() {
        None => Ok("unknown: this system does not tell".to_owned()),
        Some(free) if free < SMALL_MODEL => Err(format!(
            "{} free; a 0.6B model needs about {}: close other programs",
            size::bytes(free),
            size::bytes(SMALL_MODEL)
        )),
        Some(free) => Ok(format!("{} free", size::bytes(free))),
    }
}

fn hub_cache() -> Result<String, String> {
    let env = HubEnv::from_env().map_err(|error| error.to_string())?;
    let cache = env.cache.display();
    let models = hub::list(&env)
        .map_err(|error| format!("{error}; check the folder's owner or set HF_HUB_CACHE"))?;
    let offline = if env.offline { ", offline" } else { "" };
    Ok(format!("{} models in {cache}, hub {}{offline}", models.len(), env.endpoint))
}

/// A small model of random weights: on the CPU device a prompt must give the same bits whether it
/// is run at once or token by token, and what the reference device gives but for rounding.
fn self_test() -> Result<String, String> {
    let start = Instant::now();
    let broken = |what: &str| {
        format!("{what}; the build or the machine is faulty: rebuild, then test the memory")
    };
    let config = Config::from_json(TEST_MODEL).map_err(|error| broken(&error.to_string()))?;
    let weights = RandomWeights::new(&config, 1);
    let limits = Limits { step_tokens: 16, step_outputs: MAX_LANES, positions: 64, pages: 1 };
    let cpu = |block: usize| {
        let device = CpuDevice::new(&config, &weights, Options::new(limits));
        let mut device = device.map_err(|error| error.to_string())?;
        Ok((prefill(&mut device, &config, block)?, device.describe()))
    };
    let (logits, name) = cpu(12).map_err(|error: String| broken(&error))?;
    if cpu(1).map_err(|error| broken(&error))?.0 != logits {
        return Err(broken("a prompt cut differently gives other bits"));
    }
    let mut reference = reference::open(&config, &weights, limits).map_err(|e| e.to_string())?;
    let defined = prefill(&mut *reference, &config, 12).map_err(|error| broken(&error))?;
    let size = defined.iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE * size;
    if !logits.iter().zip(&defined).all(is_near) {
        return Err(broken("the CPU device does not compute what the reference does"));
    }
    Ok(format!("{name} against reference, {:.0} ms", start.elapsed().as_secs_f64() * 1e3))
}

/// How far two ways of rounding may lie apart after two layers, as a share of the largest logit.
const TOLERANCE: f32 = 0.1;

const TEST_MODEL: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "vocab_size": 256, "max_position_embeddings": 64, "rope_theta": 1e6, "tie_word_embeddings": true}"#;

/// Runs 12 tokens in blocks and gives the last one's logits.
fn prefill(device: &mut dyn Device, config: &Config, block: usize) -> Result<Vec<f32>, String> {
    let tokens: Vec<u32> = (0..12).map(|i| i * 19 % 256).collect();
    let rows: Vec<u32> = (0..12).collect();
    let ops = plan(config);
    for start in (0..tokens.len()).step_by(block) {
        let range = start..(start + block).min(tokens.len());
        let span = Span { pages: vec![0], len: range.end, home_position: 0, position: 0 };
        let lane = Lane {
            tokens: &tokens[range.clone()],
            positions: &rows[range.clone()],
            store_at: &rows[range],
            spans: &[span],
            outputs: Outputs::Last,
        };
        device.run(&ops, &Step { lanes: &[lane] }).map_err(|error| error.to_string())?;
    }
    Ok(device.logits(0).to_vec())
}
