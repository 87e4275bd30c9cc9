//! What parcels carry, and what they cannot plant.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::chunk::{Chunk, ChunkId, Homes, Kind, Library};
use crate::dtype::Dtype;
use crate::prompt::Template;
use crate::store::{Header, HostRows, KvKey, Prefix, Put, RowForm, SigningKey, Store};
use crate::tokenizer::Tokenizer;

const KEY: SigningKey = SigningKey::from_bytes([7; 32]);
const MODEL: &str = "model";

/// A folder, a tokenizer and a template.
struct Desk {
    folder: TempDir,
    template: Template,
    tokenizer: Tokenizer,
    system: Chunk,
    chunk: Chunk,
}

impl Desk {
    fn new() -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts");
        let template = fs::read_to_string(data.join("qwen3.jinja")).unwrap();
        let tokenizer = Tokenizer::from_file(data.join("tokenizer.json")).unwrap();
        let chunk = |kind, text| {
            let metadata = BTreeMap::from([("name".to_owned(), "n".to_owned())]);
            Chunk::new(&tokenizer, kind, text, metadata).unwrap()
        };
        Self {
            folder: TempDir::new().unwrap(),
            template: Template::new(&template, None, None).unwrap(),
            system: chunk(Kind::System, "be brief"),
            chunk: chunk(Kind::Context, "a text"),
            tokenizer,
        }
    }

    fn store(&self, name: &str) -> Store {
        Store::open(&self.folder.path().join(name), 1 << 20).unwrap()
    }

    fn homes(&self, chunk: &Chunk) -> Homes {
        let mut library = Library::default();
        library.restore(self.system.clone());
        Homes::new(&self.template, &self.tokenizer, &library, chunk)
    }

    /// The template's tokens before a first document.
    fn begin(&self) -> Vec<u32> {
        self.tokenizer.encode_markup("<|im_start|>user\n").unwrap()
    }

    fn system_piece(&self) -> Vec<u32> {
        let text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n";
        self.tokenizer.encode_markup(text).unwrap()
    }

    /// A parcel of the chunk that says it has these rows: a signer who is not honest, or mistaken.
    fn parcel(&self, name: &str, rows: &[Header]) -> PathBuf {
        let mut from = self.store("from");
        let path = self.folder.path().join(name);
        let (card, mut sections) = (Card::of(&self.chunk), Vec::new());
        let hash = hash_chunk(&card).unwrap();
        for header in rows {
            let key = header.key();
            let n = header.tensor_bytes().unwrap();
            let put =
                from.put(&key, header, &HostRows { k: vec![1; n].into(), v: vec![2; n].into() });
            assert_eq!(put, Put::Stored);
            let copy = path.with_extension("copy");
            from.export(&key, &copy).unwrap();
            from.remove(&key);
            let bytes = fs::read(&copy).unwrap();
            fs::remove_file(&copy).unwrap();
            let signature = KEY.sign(&rows_message(&hash, &blake3::hash(&bytes))).to_string();
            let section = Section { rows_bytes: bytes.len() as u64, signature };
            sections.extend(serde_json::to_vec(&section).unwrap());
            sections.push(b'\n');
            sections.extend(bytes);
        }
        let first = First {
            format: FORMAT.to_owned(),
            version: VERSION,
            chunk: card,
            chunk_blake3: hash.to_string(),
            signature: Some(KEY.sign(&chunk_message(&hash)).to_string()),
        };
        let first = serde_json::to_vec(&first).unwrap();
        fs::write(&path, [&first[..], b"\n", &sections].concat()).unwrap();
        path
    }

    /// Imports rows into an empty store, and returns how many it has then.
    fn import(&self, path: &Path, key: &SigningKey) -> (usize, Vec<String>) {
        let mut to = self.store("to");
        let parcel = Parcel::open(path).unwrap().signed_by(Some(key)).expect("signed");
        let imported = parcel.import_rows(&mut to, &self.homes(&self.chunk), MODEL).unwrap();
        let keys: Vec<KvKey> = to.entries().map(|(key, _)| *key).collect();
        assert_eq!(keys.len(), imported.files);
        keys.iter().for_each(|key| assert!(to.remove(key)));
        (imported.files, imported.refused)
    }
}

/// Rows of tokens after others.
fn rows(before: &[u32], tokens: &[u32]) -> Header {
    let mut prefix = Prefix::root(MODEL);
    prefix.add(before);
    Header {
        fingerprint: MODEL.to_owned(),
        dtype: Dtype::Bf16,
        form: RowForm::Full,
        layers: 1,
        kv_width: 4,
        reuse: "exact".to_owned(),
        parent: prefix.key(),
        home_position: before.len(),
        tokens: tokens.to_vec(),
        prefill_us: 1,
    }
}

#[test]
fn a_chunk_has_homes_alone_and_after_system_prompts() {
    let desk = Desk::new();
    let (homes, tokens) = (desk.homes(&desk.chunk), &desk.chunk.tokens);
    for before in [&[][..], &desk.begin(), &desk.system_piece()] {
        assert!(homes.have(&rows(before, tokens)), "{before:?}");
        // Neither a part of it, nor it and more, nor others.
        assert!(!homes.have(&rows(before, &tokens[..tokens.len() - 1])));
        assert!(!homes.have(&rows(before, &[&tokens[..], &[1]].concat())));
        assert!(!homes.have(&rows(before, &[])));
    }
    let after_document = [&desk.begin()[..], tokens].concat();
    assert!(!homes.have(&rows(&after_document, tokens)), "after a document");
    let moved = Header { home_position: 1, ..rows(&[], tokens) };
    assert!(!homes.have(&moved), "at another position");
    let system = desk.homes(&desk.system);
    assert!(system.have(&rows(&[], &desk.system_piece())));
    // Rows of the begin alone would serve every prompt.
    assert!(!system.have(&rows(&[], &desk.system_piece()[..3])));
    assert!(!system.have(&rows(&[], &desk.system.tokens)));
}

#[test]
fn rows_of_the_chunk_are_imported_and_planted_ones_are_not() {
    let desk = Desk::new();
    let tokens = &desk.chunk.tokens;
    let honest =
        [rows(&[], tokens), rows(&desk.begin(), tokens), rows(&desk.system_piece(), tokens)];
    assert_eq!(desk.import(&desk.parcel("honest", &honest), &KEY), (3, vec![]));
    let other = desk.tokenizer.encode_text("another text").unwrap();
    let planted = [
        rows(&[], &other),
        rows(&[], &desk.begin()),
        rows(&[], &desk.system_piece()),
        rows(&desk.begin(), &[tokens, &other[..]].concat()),
        rows(&other, tokens),
    ];
    let (files, refused) = desk.import(&desk.parcel("planted", &planted), &KEY);
    assert_eq!((files, refused.len()), (0, planted.len()), "{refused:?}");
    assert!(refused.iter().all(|reason| reason.contains("other tokens")), "{refused:?}");
}

#[test]
fn an_export_has_the_rows_at_homes_alone() {
    let desk = Desk::new();
    let (tokens, mut store) = (&desk.chunk.tokens, desk.store("store"));
    let after_document = [&desk.begin()[..], tokens].concat();
    let kept = [rows(&desk.system_piece(), tokens), rows(&after_document, tokens)];
    for header in kept {
        let n = header.tensor_bytes().unwrap();
        let key = header.key();
        store.put(&key, &header, &HostRows { k: vec![1; n].into(), v: vec![2; n].into() });
    }
    let path = desk.folder.path().join("parcel");
    let homes = desk.homes(&desk.chunk);
    let signed = SignedRows { store: &mut store, homes: &homes, key: &KEY };
    let exported = export(&desk.chunk, Some(signed), &path).unwrap();
    assert_eq!((exported.files, exported.elsewhere, exported.left_out.len()), (1, 1, 0));
    assert_eq!(desk.import(&path, &KEY), (1, vec![]));
    let other = Store::open(&desk.folder.path().join("other"), 1 << 20).unwrap();
    assert_eq!(other.entries().count(), 0);
    let parcel = Parcel::open(&path).unwrap().signed_by(Some(&KEY)).expect("signed");
    let mut other = other;
    let imported = parcel.import_rows(&mut other, &homes, "another model").unwrap();
    assert!(imported.refused[0].contains("another model"), "{:?}", imported.refused);
}

#[test]
fn an_export_of_several_rows_leaves_no_copies() {
    let desk = Desk::new();
    let (tokens, mut store) = (&desk.chunk.tokens, desk.store("store"));
    for header in [rows(&desk.begin(), tokens), rows(&desk.system_piece(), tokens)] {
        let n = header.tensor_bytes().unwrap();
        store.put(&header.key(), &header, &HostRows { k: vec![1; n].into(), v: vec![2; n].into() });
    }
    let path = desk.folder.path().join("parcel");
    let homes = desk.homes(&desk.chunk);
    let signed = SignedRows { store: &mut store, homes: &homes, key: &KEY };
    let exported = export(&desk.chunk, Some(signed), &path).unwrap();
    assert_eq!((exported.files, &exported.left_out), (2, &vec![]));
    let names = fs::read_dir(desk.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let copies: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".rows")).collect();
    assert!(copies.is_empty(), "{copies:?}");
    assert_eq!(desk.import(&path, &KEY), (2, vec![]));
}

#[test]
fn rows_need_a_signature_of_the_right_key() {
    let desk = Desk::new();
    let path = desk.parcel("parcel", &[rows(&[], &desk.chunk.tokens)]);
    let why =
        |path: &Path, key: Option<&SigningKey>| Parcel::open(path).unwrap().signed_by(key).err();
    assert_eq!(why(&path, Some(&KEY)), None);
    assert_eq!(why(&path, None), Some(Untrusted::NoKey));
    let other = SigningKey::from_bytes([8; 32]);
    assert_eq!(why(&path, Some(&other)), Some(Untrusted::OtherKey));
    let unsigned = desk.folder.path().join("unsigned");
    export(&desk.chunk, None, &unsigned).unwrap();
    assert_eq!(why(&unsigned, Some(&KEY)), Some(Untrusted::Unsigned));
    // The rows may be there all the same; nobody reads them.
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let stripped = [&fs::read(&unsigned).unwrap()[..], &bytes[end + 1..]].concat();
    fs::write(&unsigned, stripped).unwrap();
    assert_eq!(why(&unsigned, Some(&KEY)), Some(Untrusted::Unsigned));
    assert_eq!(Parcel::open(&unsigned).unwrap().text(), "a text");
}

#[test]
fn a_file_of_the_first_version_is_unsigned() {
    let desk = Desk::new();
    let mut first = serde_json::json!({
        "format": "weft-chunk", "version": 1, "chunk": Card::of(&desk.chunk),
        "text_blake3": blake3::hash(b"a text").to_string(),
    });
    let path = desk.folder.path().join("old");
    let open = |first: &serde_json::Value| {
        fs::write(&path, format!("{first}\n{{\"rows_bytes\":1}}\nx")).unwrap();
        Parcel::open(&path)
    };
    let mut parcel = open(&first).unwrap();
    assert!(parcel.has_rows().unwrap());
    assert_eq!((parcel.kind(), parcel.text()), (Kind::Context, "a text"));
    assert_eq!(parcel.signed_by(Some(&KEY)).err(), Some(Untrusted::Unsigned));
    // A signature does not belong there.
    first["signature"] = KEY.sign(&[]).to_string().into();
    assert!(open(&first).is_err());
    first["version"] = 3.into();
    let said = open(&first).err().expect("opened").to_string();
    assert!(said.contains("3, expected weft-chunk 1 or 2"), "{said}");
}

#[test]
fn a_signature_counts_for_its_own_section_alone() {
    let desk = Desk::new();
    let headers = [rows(&[], &desk.chunk.tokens), rows(&desk.begin(), &desk.chunk.tokens)];
    let [one, two] = headers.map(|header| fs::read(desk.parcel("one", &[header])).unwrap());
    let lines = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes.splitn(3, |byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    let (one, two) = (lines(&one), lines(&two));
    let path = desk.folder.path().join("mixed");
    let write = |lines: [&Vec<u8>; 3]| fs::write(&path, lines.map(Vec::as_slice).join(&b'\n'));
    write([&one[0], &one[1], &one[2]]).unwrap();
    assert_eq!(desk.import(&path, &KEY).0, 1);
    write([&one[0], &one[1], &two[2]]).unwrap();
    let (files, refused) = desk.import(&path, &KEY);
    assert!(files == 0 && refused[0].contains("signature"), "{refused:?}");
    // The same rows in the parcel of another chunk: another name is enough.
    let mut other = desk.chunk.clone();
    other.metadata.insert("name".to_owned(), "m".to_owned());
    let desk = Desk { chunk: other, ..desk };
    let other = lines(&fs::read(desk.parcel("other", &[])).unwrap());
    write([&other[0], &one[1], &one[2]]).unwrap();
    let (files, refused) = desk.import(&path, &KEY);
    assert!(files == 0 && refused[0].contains("signature"), "{refused:?}");
}

#[test]
fn a_flipped_bit_never_changes_what_is_imported() {
    let desk = Desk::new();
    let path = desk.parcel("parcel", &[rows(&[], &desk.chunk.tokens)]);
    let bytes = fs::read(&path).unwrap();
    let (mut to, homes) = (desk.store("to"), desk.homes(&desk.chunk));
    let imported = |bytes: &[u8], to: &mut Store| {
        fs::write(&path, bytes).unwrap();
        let Ok(parcel) = Parcel::open(&path) else { return 0 };
        let chunk = (parcel.kind(), parcel.text().to_owned(), parcel.metadata().clone());
        let expected = (desk.chunk.kind, desk.chunk.text.clone(), desk.chunk.metadata.clone());
        assert_eq!(chunk, expected);
        let Ok(parcel) = parcel.signed_by(Some(&KEY)) else { return 0 };
        // The file may seem to end early.
        let _ = parcel.import_rows(to, &homes, MODEL);
        let found: Vec<KvKey> = to.entries().map(|(key, _)| *key).collect();
        for key in &found {
            let header = rows(&[], &desk.chunk.tokens);
            let n = header.tensor_bytes().unwrap();
            let stored = to.get(key, &header).expect("the same header");
            assert_eq!(stored, HostRows { k: vec![1; n].into(), v: vec![2; n].into() });
            to.remove(key);
        }
        found.len()
    };
    assert_eq!(imported(&bytes, &mut to), 1);
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let mut imports = 0;
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let files = imported(&flipped, &mut to);
        assert!(files == 0 || at < end, "bit {} of byte {at}", at % 8);
        imports += files;
    }
    // In JSON, a few bits only change the spelling.
    assert!(imports < 4, "{imports}");
    for at in 0..bytes.len() {
        assert_eq!(imported(&bytes[..at], &mut to), 0, "cut at {at}");
    }
}

/// Rows that the budget cannot hold are passed over without a copy; those after them are read.
#[test]
fn rows_beyond_the_budget_are_skipped_unread() {
    let desk = Desk::new();
    let tokens = &desk.chunk.tokens;
    let path = desk.parcel("one", &[rows(&desk.begin(), tokens)]);
    let bytes = fs::read(&path).unwrap();
    let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let budget = desk.store("to").budget_bytes();
    let large = Section { rows_bytes: budget + 1, signature: "unread".to_owned() };
    let large = serde_json::to_vec(&large).unwrap();
    let unread = vec![0; budget as usize + 1];
    let both = [&bytes[..first], &large, b"\n", &unread, &bytes[first..]].concat();
    fs::write(&path, both).unwrap();
    let (files, refused) = desk.import(&path, &KEY);
    assert_eq!((files, refused.len()), (1, 1), "{refused:?}");
    assert!(refused[0].contains(&format!("{} bytes, and the budget is {budget}", budget + 1)));
}

#[test]
fn a_text_that_was_changed_is_refused() {
    let desk = Desk::new();
    let path = desk.parcel("parcel", &[]);
    let text = fs::read_to_string(&path).unwrap();
    for changed in [text.replace("a text", "b text"), text.replace("\"n\"", "\"m\"")] {
        assert_ne!(changed, text);
        fs::write(&path, changed).unwrap();
        let said = Parcel::open(&path).err().expect("opened").to_string();
        assert!(said.contains("checksum"), "{said}");
    }
}

#[test]
fn a_card_with_the_id_of_another_chunk_is_refused() {
    let chunk = Desk::new().chunk;
    let card = |id: &str| {
        let mut json = serde_json::to_value(Card::of(&chunk)).unwrap();
        json["id"] = id.into();
        serde_json::from_value::<Card>(json).unwrap().chunk()
    };
    assert_eq!(card(&chunk.id.to_string()).unwrap().tokens, chunk.tokens);
    let other = ChunkId::of(Kind::Context, &[1]).to_string();
    assert!(card(&other).unwrap_err().contains("but it holds chunk"));
}
