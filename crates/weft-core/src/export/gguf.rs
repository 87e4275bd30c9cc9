//! The metadata of a new GGUF file, with the keys that llama.cpp's converter writes.

use std::path::Path;

use super::ExportError;
use super::files::ModelFiles;
use crate::config::{Config, Family, RopeScaling};
use crate::model::{END_TOKENS, Model, Origin};
use crate::rope;
use crate::tokenizer::GgufTables;
use crate::weights::{Blocks, NewMetadata, describe_config};

/// The version of the layouts of blocks.
const QUANTIZATION_VERSION: u32 = 2;

/// The metadata, and the divisors of the rotary frequencies, if the model has them.
pub(super) fn metadata(
    model: &Model,
    files: &ModelFiles,
    blocks: Blocks,
) -> Result<(NewMetadata, Option<Vec<f32>>), ExportError> {
    let mut metadata = NewMetadata::default();
    metadata.text("general.architecture", model.config.family.architecture());
    metadata.text("general.type", "model");
    metadata.text("general.name", &name(model));
    metadata.count("general.file_type", blocks.file_type());
    metadata.count("general.quantization_version", QUANTIZATION_VERSION);
    let factors = factors(&model.config)?;
    check_experts(&model.config)?;
    describe_config(&model.config, &mut metadata);
    model.generation.describe(&mut metadata);
    describe_tokenizer(model, files, &mut metadata)?;
    Ok((metadata, factors))
}

/// llama.cpp reads divisors for llama only, and rounds the ramp of YaRN to whole dimensions.
fn factors(config: &Config) -> Result<Option<Vec<f32>>, ExportError> {
    match config.rope.scaling {
        RopeScaling::Yarn { truncate: false, .. } => {
            Err(ExportError::NotInGguf("the ramp of YaRN is not rounded".to_owned()))
        }
        RopeScaling::None | RopeScaling::Yarn { .. } => Ok(None),
        RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) if config.family != Family::Llama => {
            let family = config.family;
            Err(ExportError::NotInGguf(format!("a {family} model has Llama 3's rotary scaling")))
        }
        RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => {
            Ok(Some(rope::factors(&config.rope, config.head_dim)))
        }
    }
}

/// llama.cpp has experts in every layer, and their weights sum to 1.
fn check_experts(config: &Config) -> Result<(), ExportError> {
    let Some(experts) = &config.experts else { return Ok(()) };
    if config.dense_width() > 0 {
        return Err(ExportError::NotInGguf("some layers have no experts".to_owned()));
    }
    if !experts.normalised {
        let what = "the weights of a token's experts do not sum to 1".to_owned();
        return Err(ExportError::NotInGguf(what));
    }
    Ok(())
}

fn describe_tokenizer(
    model: &Model,
    files: &ModelFiles,
    metadata: &mut NewMetadata,
) -> Result<(), ExportError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let tables = GgufTables::of_json(&files.tokenizer, model.config.vocab)?;
    let bos = match model.tokenizer.bos() {
        [] => files.special("bos", model),
        [id] => Some(*id),
        ids => {
            let what = format!("texts begin with {} tokens", ids.len());
            return Err(ExportError::NotInGguf(what));
        }
    };
    metadata.text(&key("model"), "gpt2");
    metadata.text(&key("pre"), tables.pre);
    metadata.texts(&key("tokens"), &tables.tokens);
    metadata.numbers(&key("token_type"), &tables.types);
    metadata.texts(&key("merges"), &tables.merges);
    metadata.flag(&key("add_bos_token"), !model.tokenizer.bos().is_empty());
    let eos = match model.tokenizer.eos() {
        [] => files.special("eos", model).or(model.config.eos_ids.first().copied()),
        [id] => {
            metadata.flag(&key("add_eos_token"), true);
            Some(*id)
        }
        ids => {
            let what = format!("texts end with {} tokens", ids.len());
            return Err(ExportError::NotInGguf(what));
        }
    };
    let others = ends(model, eos);
    for (name, id) in [
        ("bos", bos),
        ("eos", eos),
        ("padding", files.special("pad", model)),
        ("eot", others.first().copied()),
        ("eom", others.get(1).copied()),
    ] {
        if let Some(id) = id {
            metadata.count(&key(&format!("{name}_token_id")), id);
        }
    }
    if let Some(template) = &model.template {
        metadata.text("tokenizer.chat_template", template.source());
    }
    Ok(())
}

/// End tokens that readers of the file would not find by their names: the end of a turn first, the
/// end of a message last.
fn ends(model: &Model, eos: Option<u32>) -> Vec<u32> {
    let text = |id: u32| model.tokenizer.token_bytes(id).unwrap_or_default();
    let is_known = |id: u32| END_TOKENS.iter().any(|token| text(id) == token.as_bytes());
    let mut others: Vec<u32> = model.stop_ids.clone();
    others.retain(|id| Some(*id) != eos && !is_known(*id));
    others.sort_by_key(|id| text(*id) == b"<|eom_id|>");
    others
}

/// The model's name without folders. The hub's cache has it in the name of a folder above.
fn name(model: &Model) -> String {
    let path = match &model.origin {
        Origin::Folder(path) | Origin::Gguf(path) => path.as_path(),
        _ => return model.name.split(' ').next().unwrap_or_default().to_owned(),
    };
    let repository = path.iter().rev().find_map(|part| part.to_str()?.strip_prefix("models--"));
    let last = repository.and_then(|name| name.rsplit("--").next());
    let own = || match path.is_dir() {
        true => path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned())),
        false => Path::new(path).file_stem().map(ToOwned::to_owned),
    };
    last.map(str::to_owned)
        .or_else(|| own().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_else(|| model.name.clone())
}
