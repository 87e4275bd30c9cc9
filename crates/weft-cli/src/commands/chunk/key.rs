//! `weft chunk key FILE`: writes a new key.

use weft_core::store::SigningKey;

use crate::args::KeyArgs;
use crate::error::CliError;
use crate::terminal;

pub(super) fn run(args: &KeyArgs) -> Result<(), CliError> {
    let file = args.file.display();
    let key = SigningKey::random().and_then(|key| key.write(&args.file));
    key.map_err(CliError::io(file.to_string()))?;
    terminal::note(
        false,
        &format!(
            "{file}: a new key. `weft chunk export` and `import` take it with --key. Whoever has \
             it can sign rows that you accept, so give it only to people whom you trust"
        ),
    );
    Ok(())
}
