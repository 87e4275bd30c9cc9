//! Sizes and folders of the cache tiers below the device, and the folder of registered chunks.

use std::path::PathBuf;

use weft::Options;
use weft::memory::default_ram_cache;
use weft_core::chunk::{Chunk, Library, Shelf};
use weft_core::store::Store;
use weft_core::tokenizer::Tokenizer;

use crate::args::CacheArgs;
use crate::error::CliError;
use crate::remote;
use crate::settings::user_folder;
use crate::size;
use crate::terminal;

const DISK_BYTES: u64 = 4 << 30;

const NO_HOME: &str = "there is no home folder; give --cache-dir";

/// The sizes from the flags, or their defaults.
pub(crate) struct Budget {
    pub(crate) ram_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// The folder of KV rows; `None` if the user has no home folder.
    pub(crate) folder: Option<PathBuf>,
}

impl Budget {
    pub(crate) fn new(args: &CacheArgs) -> Self {
        Self {
            ram_bytes: args.ram_cache.unwrap_or_else(default_ram_cache),
            disk_bytes: args.disk_cache.unwrap_or(DISK_BYTES),
            folder: args
                .cache_dir
                .clone()
                .or_else(|| Some(user_folder("XDG_CACHE_HOME", ".cache")?.join("kv"))),
        }
    }

    /// The sizes as text.
    pub(crate) fn describe(&self) -> String {
        let place = match &self.folder {
            Some(folder) if self.disk_bytes > 0 => format!(" in {}", folder.display()),
            _ => String::new(),
        };
        let (ram, disk) = (size::bytes(self.ram_bytes), size::bytes(self.disk_bytes));
        format!("up to {ram} in memory, {disk} on disk{place}")
    }

    /// What a context costs on the device, in memory and on disk, where a KV row has the same
    /// size, and how many tokens the two budgets hold.
    pub(crate) fn context_cost(&self, bytes_per_token: u64, context: usize) -> String {
        let bytes = |tokens: usize| size::bytes(bytes_per_token * tokens as u64);
        let tokens = |budget: u64| budget / bytes_per_token.max(1);
        format!(
            "{} per 1k tokens, {} for {context}, on the device, in memory or on disk; memory holds \
             {} tokens, disk {}",
            bytes(1024),
            bytes(context),
            tokens(self.ram_bytes),
            tokens(self.disk_bytes)
        )
    }

    /// Opens the folder of KV rows; `None` if the disk tier is off.
    pub(crate) fn open_store(&self) -> Result<Option<Store>, String> {
        if self.disk_bytes == 0 {
            return Ok(None);
        }
        let folder = self.folder.as_deref().ok_or(NO_HOME)?;
        Store::open(folder, self.disk_bytes).map(Some).map_err(|error| error.to_string())
    }
}

/// Sets the cache options from the flags. Warns if there is no home folder for rows on disk.
pub(crate) fn keep(options: Options, args: &CacheArgs) -> Result<Options, CliError> {
    if args.no_cache {
        return Ok(options.ram_cache(0));
    }
    let options = match remote::tier(args)? {
        Some(remote) => options.remote(remote),
        None => options,
    };
    let Budget { ram_bytes, disk_bytes, folder } = Budget::new(args);
    let options = options.ram_cache(ram_bytes).stored_rows(args.stored_rows.unwrap_or_default());
    Ok(match folder {
        Some(folder) => options.disk_cache(folder, disk_bytes),
        None if disk_bytes > 0 => {
            terminal::warn(&format!("KV rows are not saved on disk: {NO_HOME}"));
            options
        }
        None => options,
    })
}

/// The registered chunks of a model.
pub(crate) struct RegisteredChunks {
    pub(crate) shelf: Shelf,
    pub(crate) library: Library,
}

impl RegisteredChunks {
    /// Reads the shelf. Files that do not hold a chunk are reported and skipped.
    pub(crate) fn open(args: &CacheArgs, tokenizer: &Tokenizer) -> Result<Self, CliError> {
        Self::load(Shelf::new(&chunk_folder(args)?, tokenizer))
    }

    /// The same for a known shelf.
    pub(crate) fn load(shelf: Shelf) -> Result<Self, CliError> {
        let registered = shelf.load()?;
        for broken in registered.broken {
            terminal::warn(&format!(
                "not a chunk: {broken}; delete the file, and add its text again"
            ));
        }
        Ok(Self { shelf, library: registered.library })
    }

    /// Writes a chunk that was registered, used or changed.
    pub(crate) fn keep(&mut self, chunk: &Chunk) -> Result<(), CliError> {
        self.shelf.keep(chunk)?;
        self.library.restore(chunk.clone());
        Ok(())
    }
}

/// The folder of registered chunks, for all models.
pub(crate) fn chunk_folder(args: &CacheArgs) -> Result<PathBuf, CliError> {
    let usual = || Some(user_folder("XDG_DATA_HOME", ".local/share")?.join("chunks"));
    args.chunk_dir.clone().or_else(usual).ok_or_else(|| {
        CliError::Usage("there is no home folder for chunks; give --chunk-dir".to_owned())
    })
}
