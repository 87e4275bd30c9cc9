//! `weft list`: the models in the hub cache, and the bundled one.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use weft_core::hub::{self, CachedModel, CachedRevision, HubEnv};
use weft_core::weights::parameters;

use crate::answer::print;
use crate::args::ListArgs;
use crate::error::CliError;
use crate::models::{BUNDLED, SMALL};
use crate::size;
use crate::terminal;

pub(crate) fn run(args: &ListArgs) -> Result<ExitCode, CliError> {
    let env = HubEnv::from_env()?;
    let models = hub::list(&env)?;
    let bundled = &weft::bundled_model()?.config;
    let bundled = parameters(bundled) * bundled.dtype.bytes() as u64;
    if args.json {
        let all: Vec<Value> = models.iter().map(facts).chain([bundled_facts(bundled)]).collect();
        print(&format!("{:#}\n", Value::Array(all)))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&models, bundled))?;
    if models.is_empty() {
        let cache = env.cache.display();
        let next = format!("nothing else in {cache}; `weft pull {SMALL}` downloads a model");
        terminal::note(false, &next);
    }
    Ok(ExitCode::SUCCESS)
}

/// The cached models, then the bundled one.
fn table(models: &[CachedModel], bundled: u64) -> String {
    let ids = models.iter().map(|model| model.id.len());
    let width = ids.chain([BUNDLED.len()]).max().unwrap_or(0);
    let line = |model: &str, revision: &str, size: &str, changed: &str, state: &str| {
        format!("{model:<width$}  {revision:<10}  {size:>8}  {changed:<12}  {state}\n")
    };
    let mut text = line("model", "revision", "size", "changed", "state");
    for model in models {
        for revision in &model.revisions {
            let size = size::bytes(revision.size_bytes);
            let changed = age(revision.last_modified);
            text += &line(&model.id, &name(revision), &size, &changed, &state(revision));
        }
    }
    text + &line(BUNDLED, "bundled", &size::bytes(bundled), "", "ready, a demo")
}

fn bundled_facts(bytes: u64) -> Value {
    json!({ "id": BUNDLED, "size_bytes": bytes, "bundled": true, "revisions": [] })
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
        age => {
            let days = usize::try_from(age.as_secs() / DAY).unwrap_or(usize::MAX);
            format!("{} ago", size::plural(days, "day"))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_ready_only_if_nothing_is_missing() {
        let revision = |gguf: &[&str], missing: &[&str]| {
            let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let (gguf, missing) = (own(gguf), own(missing));
            let (sha, refs, size_bytes) = ("0123456789".to_owned(), Vec::new(), 1);
            CachedRevision { sha, refs, size_bytes, last_modified: None, gguf, missing }
        };
        assert_eq!(state(&revision(&[], &[])), "ready");
        assert_eq!(state(&revision(&["a.gguf"], &[])), "ready: a.gguf");
        let incomplete = revision(&[], &["config.json", "model.safetensors"]);
        assert_eq!(state(&incomplete), "incomplete: config.json, model.safetensors");
        assert_eq!(name(&incomplete), "01234567");
    }
}
