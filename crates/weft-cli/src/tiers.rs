//! Where KV rows and registered chunks are kept besides the device, and how much of them.

use std::path::PathBuf;

use weft::Options;
use weft::memory::default_ram_cache;
use weft_core::chunk::{Chunk, Library, Shelf};
use weft_core::store::Store;
use weft_core::tokenizer::Tokenizer;

use crate::args::CacheArgs;
use crate::error::CliError;
use crate::settings::user_folder;
use crate::size;
use crate::terminal;

const DISK_BYTES: u64 = 4 << 30;

const NO_HOME: &str = "there is no home folder; give --cache-dir";

/// What the flags, and the defaults for those not given, come to.
pub(crate) struct Budget {
    pub(crate) ram_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// The folder of rows; none where the user has no home.
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

    /// What may be kept, for people.
    pub(crate) fn describe(&self) -> String {
        let place = match &self.folder {
            Some(folder) if self.disk_bytes > 0 => format!(" in {}", folder.display()),
            _ => String::new(),
        };
        let (ram, disk) = (size::bytes(self.ram_bytes), size::bytes(self.disk_bytes));
        format!("up to {ram} in memory, {disk} on disk{place}")
    }

    /// Opens the folder of rows; none where the user wants none on disk.
    pub(crate) fn open_store(&self) -> Result<Option<Store>, String> {
        if self.disk_bytes == 0 {
            return Ok(None);
        }
        let folder = self.folder.as_deref().ok_or(NO_HOME)?;
        Store::open(folder, self.disk_bytes).map(Some).map_err(|error| error.to_string())
    }
}

/// Keeps rows as the flags say. Warns a user without a home that none are kept on disk.
pub(crate) fn keep(options: Options, args: &CacheArgs) -> Options {
    if args.no_cache {
        return options.ram_cache(0);
    }
    let Budget { ram_bytes, disk_bytes, folder } = Budget::new(args);
    let options = options.ram_cache(ram_bytes);
    match folder {
        Some(folder) => options.disk_cache(folder, disk_bytes),
        None if disk_bytes > 0 => {
            terminal::warn(&format!("rows are not kept on disk: {NO_HOME}"));
            options
        }
        None => options,
    }
}

/// The registered chunks of a model.
pub(crate) struct RegisteredChunks {
    pub(crate) shelf: Shelf,
    pub(crate) library: Library,
}

impl RegisteredChunks {
    /// Reads the shelf; files that hold no chunk are reported and passed over.
    pub(crate) fn open(args: &CacheArgs, tokenizer: &Tokenizer) -> Result<Self, CliError> {
        let shelf = Shelf::new(&chunk_folder(args)?, tokenizer);
        let registered = shelf.load()?;
        for broken in registered.broken {
            terminal::warn(&format!("not a chunk: {broken}"));
        }
        Ok(Self { shelf, library: registered.library })
    }

    /// Writes down a chunk that was registered, used or changed.
    pub(crate) fn keep(&mut self, chunk: &Chunk) -> Result<(), CliError> {
        self.shelf.keep(chunk)?;
        self.library.restore(chunk.clone());
        Ok(())
    }
}

/// The folder of registered chunks of all models.
pub(crate) fn chunk_folder(args: &CacheArgs) -> Result<PathBuf, CliError> {
    let usual = || Some(user_folder("XDG_DATA_HOME", ".local/share")?.join("chunks"));
    args.chunk_dir.clone().or_else(usual).ok_or_else(|| {
        CliError::Usage("there is no home folder to keep chunks in; give --chunk-dir".to_owned())
    })
}
