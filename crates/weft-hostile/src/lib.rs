//! What each fuzz target does with one input. An input may be refused or read; a panic, a wait of
//! over a second, or more than a gigabyte of memory is a fault. `fuzz/` makes up inputs; the tests
//! here read the ones that are in its corpora.
#![forbid(unsafe_code)]

mod models;
mod remote;
mod seal;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tempfile::TempDir;
use weft_core::chunk::{Chunk, Homes, Library, Parcel};
use weft_core::config::Config;
use weft_core::device::{Limits, Need};
use weft_core::dtype::Dtype;
use weft_core::plan::plan;
use weft_core::prompt::{Conversation, Message, Template};
use weft_core::rope::RopeTable;
use weft_core::sampling::GenerationConfig;
use weft_core::store::{SigningKey, Store};
use weft_core::tokenizer::Tokenizer;
use weft_core::weights::{
    Form, Forms, Gguf, Safetensors, Weights, parameters, shards_of_index, tensors,
};
use weft_server::Loaded;
use weft_server::fuzzing::{self, Reader};
use weft_testing::stub;

pub use models::{CONFIG, PACKED_CONFIG, packed_configs};
pub use remote::{VOCABULARY, pulled_from, remote, remote_chunk};
pub use seal::remote as sealed_remote;

/// A target's name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("chunk_file", chunk_file),
    ("config", config),
    ("gguf", gguf),
    ("grammar", grammar),
    ("parcel", parcel),
    ("remote", remote),
    ("request", request),
    ("safetensors", safetensors),
    ("template", template),
    ("tokenizer", tokenizer),
    ("tool_calls", tool_calls),
];

/// The model that chunk files of the corpora belong to.
pub const FINGERPRINT: &str = "a model";

/// The key that signs the parcels of the corpora.
pub const KEY: SigningKey = SigningKey::from_bytes([7; 32]);

/// The bytes that a store may hold.
const BUDGET_BYTES: u64 = 1 << 20;

/// `config.json`: what is read must be of a size that can be planned.
pub fn config(input: &[u8]) {
    let Ok(config) = Config::from_json(input) else { return };
    let limits = Limits { step_tokens: 256, step_outputs: 16, positions: 64, pages: 4 };
    assert!(parameters(&config) > 0);
    assert!(Need::unpadded(&config, &Forms::default(), &limits, Dtype::Bf16).total() > 0);
    assert!(!plan(&config).is_empty() && !tensors(&config).is_empty());
    RopeTable::new(&config.rope, config.head_dim, limits.positions);
}

/// A file of weights, plain or packed, or (if it begins as JSON does) the index of several.
pub fn safetensors(input: &[u8]) {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    if input.starts_with(b"{") {
        let file = FOLDER.get_or_init(temporary).path().join("index.json");
        fs::write(&file, input).expect("a temporary file");
        let _ = shards_of_index(&file);
        return;
    }
    static CONFIGS: OnceLock<Vec<(&str, Config)>> = OnceLock::new();
    let configs = CONFIGS.get_or_init(|| {
        let plain = Config::from_json(CONFIG.as_bytes()).expect("a config");
        std::iter::once(("", plain)).chain(packed_configs()).collect()
    });
    let header = header_of(input).unwrap_or_default();
    // Other formats refuse the file at once, for the name that is missing.
    let has = |name: &str| header.contains(name);
    for (_, config) in configs.iter().filter(|(name, _)| has(name)) {
        let opened = Safetensors::from_bytes("input", input.to_vec(), config);
        let Ok(weights) = opened else { continue };
        for shape in tensors(config) {
            let mut elements = 0;
            if weights.read(shape.tensor, &mut |_, row| elements += row.len()).is_ok() {
                assert_eq!(elements, shape.elements());
            }
            if weights.form(shape.tensor) != Form::Plain {
                let _ = weights.read_coded(shape.tensor, &mut |_, _| {});
            }
        }
    }
}

/// The text of a file's header.
fn header_of(input: &[u8]) -> Option<&str> {
    let (length, rest) = input.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    std::str::from_utf8(rest.get(..length)?).ok()
}

/// A GGUF file: config, tokenizer, template, settings, and the rows of all tensors.
pub fn gguf(input: &[u8]) {
    let Ok(gguf) = Gguf::from_bytes("input", input.to_vec()) else { return };
    let _ = GenerationConfig::from_gguf(gguf.metadata());
    if let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) {
        encode(&tokenizer);
        let _ = Template::from_gguf(gguf.metadata(), &tokenizer);
    }
    let Ok(config) = gguf.config() else { return };
    RopeTable::new(&config.rope, config.head_dim, 64);
    let Ok(weights) = gguf.weights(&config) else { return };
    for shape in tensors(&config) {
        let mut elements = 0;
        if weights.read(shape.tensor, &mut |_, row| elements += row.len()).is_ok() {
            assert_eq!(elements, shape.elements());
        }
        if weights.form(shape.tensor) != Form::Plain {
            let _ = weights.read_coded(shape.tensor, &mut |_, _| {});
        }
    }
}

/// `tokenizer.json`: what it encodes, it decodes.
pub fn tokenizer(input: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(input) else { return };
    encode(&tokenizer);
}

fn encode(tokenizer: &Tokenizer) {
    const TEXT: &str = "It's 12 <|im_end|>\r\n  a\u{301} ſ東\u{200d}🦀 \0xx\t{\"a\": 1}";
    for ids in [tokenizer.encode_text(TEXT), tokenizer.encode_markup(TEXT)].into_iter().flatten() {
        assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()));
        tokenizer.decode(&ids, false);
    }
    tokenizer.decode(&[0, u32::MAX, tokenizer.vocab_size()], true);
}

/// A chat template, on a conversation with everything that one can hold.
pub fn template(input: &[u8]) {
    static CONVERSATIONS: OnceLock<Vec<Conversation>> = OnceLock::new();
    let Ok(source) = std::str::from_utf8(input) else { return };
    let Ok(template) = Template::new(source, Some("<s>"), Some("</s>")) else { return };
    for conversation in CONVERSATIONS.get_or_init(conversations) {
        if let Ok(rendered) = template.render(conversation) {
            assert_eq!(
                rendered.text(),
                rendered
                    .segments()
                    .iter()
                    .map(weft_core::prompt::Segment::text)
                    .collect::<String>()
            );
        }
    }
}

fn conversations() -> Vec<Conversation> {
    let call = serde_json::json!({"type": "function", "id": "1", "function":
        {"name": "look", "arguments": {"at": ["the sea", 1, null, 2.5, true]}}});
    let messages = vec![
        Message::system("Be <|im_end|> brief."),
        Message::user("Who? \u{fdd0}"),
        Message {
            tool_calls: Some(vec![call.clone()]),
            ..Message::assistant("<think>hm</think>I")
        },
        Message { role: "tool".to_owned(), ..Message::user("{\"seen\": 3}") },
        Message::user_pieces(vec!["One. ".to_owned(), "Two.".to_owned()]),
    ];
    let mut long = Conversation::new(messages, Some(true));
    long.tools = vec![call];
    let mut short = Conversation::new(vec![Message::user("a"), Message::assistant("b")], None);
    short.continue_last = true;
    short.add_generation_prompt = false;
    vec![long, short]
}

/// A file of stored rows: as it is, and with its checksums made right, so that what lies behind
/// them is reached too.
pub fn chunk_file(input: &[u8]) {
    static SCENE: OnceLock<Mutex<Scene>> = OnceLock::new();
    let mut scene = lock(SCENE.get_or_init(Scene::new));
    for bytes in [Some(input.to_vec()), seal::chunk_file(input)].into_iter().flatten() {
        scene.read(&bytes, |path, store| {
            if let Ok((key, header)) = store.import(path, FINGERPRINT) {
                let rows = store.get(&key, &header).expect("rows that were just stored");
                assert_eq!(Some(rows.k.len()), header.full_bytes());
            }
        });
    }
}

/// An exported chunk: as it is, and with its checksums and signatures made right. Whatever is
/// stored are rows of the chunk itself.
pub fn parcel(input: &[u8]) {
    static SCENE: OnceLock<Mutex<Scene>> = OnceLock::new();
    let mut scene = lock(SCENE.get_or_init(Scene::new));
    for bytes in [Some(input.to_vec()), seal::parcel(input)].into_iter().flatten() {
        scene.read(&bytes, |path, store| {
            let Ok(mut parcel) = Parcel::open(path) else { return };
            let (kind, metadata): (_, &BTreeMap<_, _>) = (parcel.kind(), parcel.metadata());
            let chunk = Chunk::new(parcel_tokenizer(), kind, parcel.text(), metadata.clone());
            let Ok(chunk) = chunk else { return };
            let has_rows = parcel.has_rows().expect("a file that can be read");
            let Ok(parcel) = parcel.signed_by(Some(&KEY)) else { return };
            let homes = parcel_homes(&chunk);
            if has_rows {
                let _ = parcel.import_rows(store, &homes, FINGERPRINT);
            }
            assert!(store.entries().all(|(_, entry)| homes.have(&entry.header)));
        });
    }
}

/// The tokenizer of parcels' texts.
pub fn parcel_tokenizer() -> &'static Tokenizer {
    &of_parcels().0
}

/// The homes of a parcel's chunk.
pub fn parcel_homes(chunk: &Chunk) -> Homes {
    let (tokenizer, template) = of_parcels();
    Homes::new(template, tokenizer, &Library::default(), chunk)
}

fn of_parcels() -> &'static (Arc<Tokenizer>, Arc<Template>) {
    static BUNDLED: OnceLock<(Arc<Tokenizer>, Arc<Template>)> = OnceLock::new();
    BUNDLED.get_or_init(|| {
        let model = stub::model();
        (model.tokenizer, model.template.expect("a chat model"))
    })
}

/// The body of a chat, or by its first character: of a completion (`0`), of Anthropic's Messages
/// (`1`), of OpenAI's Responses (`2`), of Ollama's routes (`3`), of llama.cpp's completion (`4`).
pub fn request(input: &[u8]) {
    let reader = reader();
    match input {
        [b'0', body @ ..] => reader.completion(body),
        [b'1', body @ ..] => reader.messages(body),
        [b'2', body @ ..] => reader.responses(body),
        [b'3', body @ ..] => reader.ollama(body),
        [b'4', body @ ..] => reader.llama(body),
        body => reader.chat(body),
    };
}

/// A grammar as llama.cpp writes it, or by its first character: a regular expression (`0`), a JSON
/// schema (`1`).
pub fn grammar(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match input {
        [b'0', ..] => reader().regex(&text[1..]),
        [b'1', schema @ ..] => reader().schema(schema),
        _ => reader().grammar(text),
    };
}

/// What a model wrote where it may call tools. The first byte chooses the form of calls, the size
/// of the pieces in which the text comes, and whether it was cut off.
pub fn tool_calls(input: &[u8]) {
    let [first, text @ ..] = input else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (style, rest) = (first % 3, first / 3);
    fuzzing::tool_calls(text, style, usize::from(1 + rest / 2 % 8), rest % 2 == 1);
}

/// Reads bodies and rules for the bundled model.
fn reader() -> &'static Reader {
    static READER: OnceLock<Reader> = OnceLock::new();
    READER.get_or_init(|| {
        let model = stub::model();
        let engine = stub::engine(&model, "a", &Arc::default());
        Reader::new(&Loaded::new("tiny", model, engine))
    })
}

/// A folder with a store, and a file beside it.
struct Scene {
    folder: TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Mutex<Self> {
        let folder = temporary();
        let store = Store::open(&folder.path().join("store"), BUDGET_BYTES).expect("a store");
        Mutex::new(Self { folder, store })
    }

    /// Has a file with these bytes read; whatever it left in the store is removed.
    fn read(&mut self, bytes: &[u8], read: impl FnOnce(&Path, &mut Store)) {
        let path = self.folder.path().join("input");
        fs::write(&path, bytes).expect("a temporary file");
        read(&path, &mut self.store);
        let keys: Vec<_> = self.store.entries().map(|(key, _)| *key).collect();
        for key in keys {
            self.store.remove(&key);
        }
        assert_eq!(self.store.used_bytes(), 0);
        self.store.take_warnings();
    }
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn lock(scene: &Mutex<Scene>) -> std::sync::MutexGuard<'_, Scene> {
    scene.lock().unwrap_or_else(PoisonError::into_inner)
}
