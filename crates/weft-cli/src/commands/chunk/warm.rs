//! `weft chunk warm ID…`: computes rows before a question needs them.

use weft_core::chunk::{Kind, Prompt};
use weft_server::resident::protocol::{Warm, Warmed};

use crate::args::WarmArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::load;
use crate::resident;
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// A prompt needs a query. The query's rows are not computed.
const ANY_QUERY: &str = "?";

pub(super) fn run(args: &WarmArgs) -> Result<(), CliError> {
    if args.cache.no_cache {
        return Err(CliError::Usage(
            "with --no-cache there is nothing to warm; leave it out".to_owned(),
        ));
    }
    interrupt::install();
    let words: Vec<String> = args.system.iter().chain(&args.ids).cloned().collect();
    let warm = Warm { words, reuse: args.reuse };
    let warmed = match resident::find(&args.model, &args.cache) {
        Some(server) => {
            terminal::note(args.model.quiet, &server.describe());
            server.warm(&warm)?
        }
        None => warm_here(args, &warm)?,
    };
    let Warmed { tokens, cached, files } = warmed;
    let text = format!("{tokens} tokens warm, {} computed now, {files} files", tokens - cached);
    terminal::note(args.model.quiet, &text);
    Ok(())
}

fn warm_here(args: &WarmArgs, warm: &Warm) -> Result<Warmed, CliError> {
    let mut loaded = load::load(&args.model, &args.cache)?;
    let mut registered = RegisteredChunks::open(&args.cache, &loaded.model.tokenizer)?;
    let mut prompt = Prompt::new().query(ANY_QUERY).reuse(warm.reuse);
    let mut used = Vec::new();
    for word in &warm.words {
        let chunk = registered.library.find(word)?.clone();
        used.push(chunk.id);
        prompt = match chunk.kind {
            Kind::System => prompt.system(&chunk.id),
            _ => prompt.context(&chunk.id),
        };
        loaded.engine.restore(chunk)?;
    }
    let composition = loaded.engine.compose(&prompt)?;
    let before = loaded.engine.preview(&composition);
    loaded.engine.warm(&composition)?;
    let files = loaded.engine.save(false);
    for id in &used {
        registered.keep(loaded.engine.library().get(id)?)?;
    }
    loaded.print_warnings();
    let pieces = before.pieces.iter().filter(|piece| piece.kind != Kind::Query);
    let (mut tokens, mut cached) = (0, 0);
    for piece in pieces {
        tokens += piece.tokens;
        cached += piece.cached_tokens;
    }
    Ok(Warmed { tokens, cached, files })
}
