//! `weft chunk warm ID…`: computes rows before a question needs them.

use weft_core::chunk::{Kind, Prompt};

use crate::args::WarmArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::load;
use crate::size;
use crate::sources::{ChunkResolver, Source};
use crate::terminal;

/// A prompt needs a query. The query's rows are not computed.
const ANY_QUERY: &str = "?";

pub(super) fn run(args: &WarmArgs) -> Result<(), CliError> {
    if args.cache.no_cache {
        return Err(CliError::Usage(
            "with --no-cache there is nothing to warm; leave it out".to_owned(),
        ));
    }
    interrupt::install();
    let mut loaded = load::load(&args.model, &args.cache)?;
    let mut resolver = ChunkResolver::open(&args.cache, &mut loaded);
    let mut prompt = Prompt::new().query(ANY_QUERY).reuse(args.reuse);
    if let Some(system) = args.system.as_deref().filter(|text| !text.trim().is_empty()) {
        let id = resolver.system(&mut loaded.engine, &Source::system(system)?)?;
        prompt = prompt.system(&id);
    }
    for word in &args.ids {
        let id = resolver.registered(&mut loaded.engine, word)?;
        prompt = match loaded.engine.library().get(&id)?.kind {
            Kind::System => prompt.system(&id),
            _ => prompt.context(&id),
        };
    }
    let composition = loaded.engine.compose(&prompt)?;
    let before = loaded.engine.preview(&composition);
    loaded.engine.warm(&composition)?;
    let n_files = loaded.engine.save(false);
    resolver.save_use_counts(&loaded.engine);
    loaded.print_warnings();
    let pieces = before.pieces.iter().filter(|piece| piece.kind != Kind::Query);
    let (mut tokens, mut kept) = (0, 0);
    for piece in pieces {
        tokens += piece.tokens;
        kept += piece.cached_tokens;
    }
    let (tokens, computed) = (size::plural(tokens, "token"), tokens - kept);
    let text = format!("{tokens} warm, {computed} computed now, {}", size::plural(n_files, "file"));
    terminal::note(args.model.quiet, &text);
    Ok(())
}
