//! `weft chunk pin ID…` and `unpin`

use weft_core::chunk::Chunk;

use crate::args::PinArgs;
use crate::error::CliError;

pub(super) fn run(args: &PinArgs, pinned: bool) -> Result<(), CliError> {
    let (mut registered, server) = super::registered(&args.model, &args.cache)?;
    // All ids are looked up before any chunk is changed.
    let found: Result<Vec<Chunk>, _> =
        args.ids.iter().map(|id| registered.library.find(id).cloned()).collect();
    for chunk in found? {
        registered.keep(&Chunk { pinned, ..chunk })?;
    }
    super::refresh(server.as_ref())
}
