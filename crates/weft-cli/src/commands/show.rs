//! `weft show MODEL`: prints dimensions, parameter count and memory.

use std::process::ExitCode;

use serde_json::{Value, json};
use weft::memory::MemoryPlan;
use weft_core::config::{Config, RopeScaling};
use weft_core::kv::PAGE_ROWS;
use weft_core::model::Model;
use weft_core::plan::{Work, plan};
use weft_core::weights::{self, Forms, active_parameters};

use crate::answer::print;
use crate::args::ShowArgs;
use crate::error::CliError;
use crate::load;
use crate::size;
use crate::tiers::Budget;

pub(crate) fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let model = load::open(args.name.as_deref(), &args.model)?;
    let memory = load::memory(
        &model.config,
        &Forms::of(&*model.weights, &model.config),
        &args.model,
        &args.cache,
    )?;
    let budget = Budget::new(&args.cache);
    let text = if args.json {
        format!("{:#}\n", facts(&model, &memory, &budget))
    } else {
        table(&rows(&model, &memory, &budget))
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The facts as a table.
fn rows(model: &Model, memory: &MemoryPlan, budget: &Budget) -> Vec<(&'static str, String)> {
    let config = &model.config;
    let per_token = config.kv_bytes_per_token(config.dtype);
    let mut rows = vec![
        ("model", model.name.clone()),
        ("family", config.family.to_string()),
        ("parameters", parameters(config)),
        ("layers", config.layers.to_string()),
        ("hidden", config.hidden.to_string()),
        (
            "heads",
            format!(
                "{} query, {} key/value, of {}",
                config.heads, config.kv_heads, config.head_dim
            ),
        ),
        ("intermediate", intermediate(config)),
        ("vocabulary", format!("{} ({} tokens used)", config.vocab, model.tokenizer.vocab_size())),
        ("head", if config.tied_head { "tied to the embedding" } else { "its own" }.to_owned()),
        ("rope", rope(config)),
        ("positions", config.max_positions.to_string()),
        ("computed in", config.dtype.to_string()),
        ("chat template", if model.template.is_some() { "yes" } else { "none" }.to_owned()),
        ("end tokens", format!("{:?}", model.stop_ids)),
    ];
    rows.push(("weights", size::bytes(memory.need.weights)));
    if let Some(bytes) = bytes_of_experts(model) {
        let text = "in experts; with --experts cpu these lie in main memory beside a GPU";
        rows.push(("", format!("{} of them {text}", size::bytes(bytes))));
    }
    let token = bytes_of_token(model);
    rows.push(("per token", format!("{} of weights are read", size::bytes(token))));
    let pages = memory.limits.pages * PAGE_ROWS;
    let kv = format!("{} per token, pages for {pages}", size::bytes(per_token));
    rows.push(("KV", kv));
    rows.push(("context", budget.context_cost(per_token, memory.limits.positions)));
    rows.push(("kept rows", budget.describe()));
    rows.push((
        "memory",
        format!(
            "{} reserved for a context of {}; in use at first: {} of weights",
            size::bytes(memory.need.total()),
            memory.limits.positions,
            size::bytes(memory.need.weights)
        ),
    ));
    rows
}

/// The weights of the model, and those that a token uses if it does not use all.
fn parameters(config: &Config) -> String {
    let all = size::count(weights::parameters(config));
    match config.experts {
        Some(_) => format!("{all}, {} of them active", size::count(active_parameters(config))),
        None => all,
    }
}

fn intermediate(config: &Config) -> String {
    let Some(experts) = &config.experts else { return config.intermediate.to_string() };
    let (chosen, count) = (experts.chosen, experts.count);
    let sparse = format!("{chosen} of {count} experts of {}", experts.intermediate);
    match config.dense_width() {
        0 => sparse,
        dense => format!("{sparse}; {dense} in dense layers"),
    }
}

/// Bytes of all experts, if the model has some.
fn bytes_of_experts(model: &Model) -> Option<u64> {
    let forms = Forms::of(&*model.weights, &model.config);
    model.config.experts.as_ref()?;
    Some(weft_cpu::need_of_experts(&model.config, &forms, 0, 0).weights)
}

/// Bytes of weights that a step of one token reads.
fn bytes_of_token(model: &Model) -> u64 {
    let config = &model.config;
    let forms = Forms::of(&*model.weights, config);
    let work = Work { n_tokens: 1, n_outputs: 1, ..Work::default() };
    let rows = config.kv_bytes_per_token(config.dtype);
    let all = plan(config).into_iter().map(|op| op.bytes(config, &forms, config.dtype, &work));
    all.sum::<u64>() - rows
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
fn facts(model: &Model, memory: &MemoryPlan, budget: &Budget) -> Value {
    let config = &model.config;
    json!({
        "name": model.name,
        "family": config.family.to_string(),
        "parameters": weights::parameters(config),
        "active_parameters": active_parameters(config),
        "weight_bytes_per_token": bytes_of_token(model),
        "experts": config.experts.as_ref().map(|experts| json!({
            "count": experts.count,
            "chosen": experts.chosen,
            "intermediate": experts.intermediate,
        })),
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
        "weight_bytes": memory.need.weights,
        "expert_weight_bytes": bytes_of_experts(model),
        "kv_bytes_per_token": config.kv_bytes_per_token(config.dtype),
        "context": memory.limits.positions,
        "kv_bytes_per_1k_tokens": 1024 * config.kv_bytes_per_token(config.dtype),
        "kv_bytes_of_context":
            memory.limits.positions as u64 * config.kv_bytes_per_token(config.dtype),
        "memory_bytes": memory.need.total(),
        "kv_page_bytes": memory.need.kv,
        "ram_cache_bytes": budget.ram_bytes,
        "disk_cache_bytes": budget.disk_bytes,
        "cache_dir": budget.folder,
    })
}

fn table(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect()
}
