//! `weft list`: the models in the hub cache.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use weft_core::hub::{self, CachedModel, CachedRevision, HubEnv};

use crate::answer::print;
use crate::args::ListArgs;
use crate::error::CliError;
use crate::size;
use crate::terminal;

pub(crate) fn run(args: &ListArgs) -> Result<ExitCode, CliError> {
    let env = HubEnv::from_env()?;
    let models = hub::list(&env)?;
    if args.json {
        let all: Vec<Value> = models.iter().map(facts).collect();
        print(&format!("{:#}\n", Value::Array(all)))?;
    } else if models.is_empty() {
        let cache = env.cache.display();
        terminal::note(false, &format!("no models in {cache}; `weft pull org/name` downloads one"));
    } else {
        print(&table(&models))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(models: &[CachedModel]) -> String {
    let width = models.iter().map(|model| model.id.len()).max().unwrap_or(0).max("model".len());
    let mut text = format!(
        "{:<width$}  {:<10}  {:>8}  {:<12}  state\n",
        "model", "revision", "size", "changed"
    );
    for model in models {
        for revision in &model.revisions {
            text += &format!(
                "{:<width$}  {:<10}  {:>8}  {:<12}  {}\n",
                model.id,
                name(revision),
                size::bytes(revision.size_bytes),
                age(revision.last_modified),
                state(revision),
            );
        }
    }
    text
}

/// A branch or tag if there is one, else the first digits of the commit.
fn name(revision: &CachedRevision) -> String {
    match revision.refs.first() {
        Some(name) => name.clone(),
        None => revision.sha.chars().take(8).collect(),
    }
}

fn state(revision: &CachedRevision) -> String {
    match revision.missing.as_slice() {
        [] if revision.gguf.is_empty() => "ready".to_owned(),
        [] => format!("ready: {}", revision.gguf.join(", ")),
        missing => format!("incomplete: {}", missing.join(", ")),
    }
}

/// How long ago, as text.
pub(crate) fn age(time: Option<SystemTime>) -> String {
    let Some(age) = time.and_then(|time| time.elapsed().ok()) else { return String::new() };
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match age {
        age if age < Duration::from_secs(HOUR) => format!("{} min ago", age.as_secs() / MINUTE),
        age if age < Duration::from_secs(DAY) => format!("{} h ago", age.as_secs() / HOUR),
        age => format!("{} days ago", age.as_secs() / DAY),
    }
}

fn facts(model: &CachedModel) -> Value {
    let revision = |revision: &CachedRevision| {
        json!({
            "sha": revision.sha,
            "refs": revision.refs,
            "size_bytes": revision.size_bytes,
            "gguf": revision.gguf,
            "missing": revision.missing,
        })
    };
    json!({
        "id": model.id,
        "size_bytes": model.size_bytes,
        "revisions": model.revisions.iter().map(revision).collect::<Vec<_>>(),
    })
}
