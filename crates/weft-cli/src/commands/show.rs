//! `weft show MODEL`: prints dimensions, parameter count and memory.

use std::process::ExitCode;

use serde_json::{Value, json};
use weft::memory::MemoryPlan;
use weft_core::config::{Config, RopeScaling};
use weft_core::kv::PAGE_ROWS;
use weft_core::model::Model;
use weft_core::weights::Forms;

use crate::answer::print;
use crate::args::ShowArgs;
use crate::error::CliError;
use crate::load;
use crate::size;
use crate::tiers::Budget;

pub(crate) fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let model = load::open(args.name.as_deref(), &args.model)?;
    let plan = load::memory(
        &model.config,
        &Forms::of(&*model.weights, &model.config),
        &args.model,
        &args.cache,
    )?;
    let budget = Budget::new(&args.cache);
    let text = if args.json {
        format!("{:#}\n", facts(&model, &plan, &budget))
    } else {
        table(&rows(&model, &plan, &budget))
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The facts as a table.
fn rows(model: &Model, plan: &MemoryPlan, budget: &Budget) -> Vec<(&'static str, String)> {
    let config = &model.config;
    let per_token = config.kv_bytes_per_token(config.dtype);
    let mut rows = vec![
        ("model", model.name.clone()),
        ("family", config.family.to_string()),
        ("parameters", size::count(weft_core::weights::parameters(config))),
        ("layers", config.layers.to_string()),
        ("hidden", config.hidden.to_string()),
        (
            "heads",
            format!(
                "{} query, {} key/value, of {}",
                config.heads, config.kv_heads, config.head_dim
            ),
        ),
        ("intermediate", config.intermediate.to_string()),
        ("vocabulary", format!("{} ({} tokens used)", config.vocab, model.tokenizer.vocab_size())),
        ("head", if config.tied_head { "tied to the embedding" } else { "its own" }.to_owned()),
        ("rope", rope(config)),
        ("positions", config.max_positions.to_string()),
        ("computed in", config.dtype.to_string()),
        ("chat template", if model.template.is_some() { "yes" } else { "none" }.to_owned()),
        ("end tokens", format!("{:?}", model.stop_ids)),
    ];
    rows.push(("weights", size::bytes(plan.need.weights)));
    let pages = plan.limits.pages * PAGE_ROWS;
    let kv = format!("{} per token, pages for {pages}", size::bytes(per_token));
    rows.push(("KV", kv));
    rows.push(("context", budget.context_cost(per_token, plan.limits.positions)));
    rows.push(("kept rows", budget.describe()));
    rows.push((
        "memory",
        format!(
            "{} reserved for a context of {}; in use at first: {} of weights",
            size::bytes(plan.need.total()),
            plan.limits.positions,
            size::bytes(plan.need.weights)
        ),
    ));
    rows
}

fn rope(config: &Config) -> String {
    let theta = config.rope.theta;
    match &config.rope.scaling {
        RopeScaling::None => format!("theta {theta}"),
        RopeScaling::Llama3 { factor, .. } => format!("theta {theta}, Llama 3 scaling × {factor}"),
        RopeScaling::Yarn { factor, .. } => format!("theta {theta}, YaRN × {factor}"),
        RopeScaling::Factors(_) => format!("theta {theta}, scaled by the factors of the file"),
    }
}

/// The facts as JSON.
fn facts(model: &Model, plan: &MemoryPlan, budget: &Budget) -> Value {
    let config = &model.config;
    json!({
        "name": model.name,
        "family": config.family.to_string(),
        "parameters": weft_core::weights::parameters(config),
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate": config.intermediate,
        "vocab": config.vocab,
        "tokens": model.tokenizer.vocab_size(),
        "tied_head": config.tied_head,
        "rope_theta": config.rope.theta,
        "max_positions": config.max_positions,
        "dtype": config.dtype.to_string(),
        "chat_template": model.template.is_some(),
        "stop_ids": model.stop_ids,
        "weight_bytes": plan.need.weights,
        "kv_bytes_per_token": config.kv_bytes_per_token(config.dtype),
        "context": plan.limits.positions,
        "kv_bytes_per_1k_tokens": 1024 * config.kv_bytes_per_token(config.dtype),
        "kv_bytes_of_context":
            plan.limits.positions as u64 * config.kv_bytes_per_token(config.dtype),
        "memory_bytes": plan.need.total(),
        "kv_page_bytes": plan.need.kv,
        "ram_cache_bytes": budget.ram_bytes,
        "disk_cache_bytes": budget.disk_bytes,
        "cache_dir": budget.folder,
    })
}

fn table(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect()
}
