//! `weft chunk warm ID…`: computes rows before a question needs them.

use weft_server::resident::protocol::{Warm, Warmed};

use crate::args::WarmArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::session::{Named, Session};
use crate::size;
use crate::sources;
use crate::terminal;

pub(super) fn run(args: &WarmArgs) -> Result<(), CliError> {
    if args.cache.no_cache {
        return Err(CliError::Usage(
            "with --no-cache there is nothing to warm; leave it out".to_owned(),
        ));
    }
    let system = args.system.as_deref().filter(|text| !text.trim().is_empty());
    let system = system.map(sources::system).transpose()?;
    interrupt::install();
    let words = args.ids.iter().map(String::as_str).collect();
    let named = Named { words, ..Named::default() };
    let mut session = Session::open_for(&args.model, &args.cache, &named)?;
    let warm = Warm { system, words: args.ids.clone(), reuse: args.reuse };
    let Warmed { tokens, cached, files } = session.warm(&warm)?;
    let (computed, files) = (tokens - cached, size::plural(files, "file"));
    let text = format!("{} warm, {computed} computed now, {files}", size::plural(tokens, "token"));
    terminal::note(args.model.quiet, &text);
    Ok(())
}
